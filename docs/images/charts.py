"""Draw the charts of the pages on benchmarks and machines from the figures below.

    python docs/images/charts.py

The figures and their commands are in benchmarks/README.md and benchmarks/plans.md.
"""

from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
# Chart -> title, unit, a line that a value may be compared with, and bars.
CHARTS: dict[str, tuple[str, str, float, dict[str, float]]] = {
    "benchmark_workers.svg": (
        "Two worker processes, batch 256: times as fast as one",
        "x",
        1.0,
        {
            "one worker": 1.0,
            "two, by splitnet": 1.76,
            "pipeline, gpipe": 1.68,
            "pipeline, 1f1b": 1.73,
        },
    ),
    "benchmark_overhead.svg": (
        "A placed step on one machine, times a plain Keras step",
        "x",
        1.0,
        {
            "8 dense layers": 0.95,
            "convolutions": 0.98,
            "two LSTMs": 0.97,
            "attention": 1.01,
        },
    ),
    "benchmark_plans.svg": (
        "Planned steps on 4 GPUs of 3 GiB, batch 64, predicted",
        " ms",
        0.0,
        {
            "ResNet50": 385.6,
            "InceptionV3": 341.1,
            "NASNetMobile": 121.2,
            "EfficientNetB0": 179.1,
        },
    ),
    "benchmark_scale.svg": (
        "Predicted: times as fast as one A100, GPUs of 8 hosts",
        "x",
        1.0,
        {
            "transformer, 8": 7.0,
            "16": 9.5,
            "32": 15.8,
            "64": 14.6,
            "64 experts, 8": 7.2,
            "16 ": 13.3,
            "32 ": 23.2,
            "64 ": 38.3,
        },
    ),
}
LEFT, WIDTH, ROW = 150, 620, 30
_STYLE = """text { font: 14px sans-serif; fill: #222 } .bar { fill: #3b6ea5 }
.mark { stroke: #b3541e; stroke-width: 2; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .bar { fill: #7fb0e0 } }"""


def chart(title: str, unit: str, mark: float, bars: dict[str, float]) -> str:
    """Horizontal bars with their values, and a dashed line at `mark` unless it is 0."""
    scale = (WIDTH - LEFT - 80) / max(bars.values())
    height = 48 + ROW * len(bars)
    rows = [f'<text x="8" y="24" font-weight="bold">{escape(title)}</text>']
    right = f'x="{WIDTH - 8}" text-anchor="end"'  # clear of the dashed line
    for place, (name, value) in enumerate(bars.items()):
        top, end = 40 + ROW * place, LEFT + value * scale
        left = f'x="{LEFT - 8}" y="{top + 16}" text-anchor="end"'
        box = f'x="{LEFT}" y="{top}" width="{end - LEFT:.1f}" height="22"'
        rows += [
            f"<text {left}>{escape(name)}</text>",
            f'<rect class="bar" {box}/>',
            f'<text {right} y="{top + 16}">{value:g}{unit}</text>',
        ]
    if mark:
        x = LEFT + mark * scale
        rows.append(
            f'<line class="mark" x1="{x:.1f}" y1="36" x2="{x:.1f}" y2="{height - 8}"/>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}"><style>{_STYLE}</style>{"".join(rows)}</svg>\n'
    )


if __name__ == "__main__":
    for name, parts in CHARTS.items():
        (HERE / name).write_text(chart(*parts), encoding="utf-8")
        print(name)
