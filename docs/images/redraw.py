"""Draw the pictures of README and docs anew, with the code that the pages show.

    python docs/images/redraw.py [NAME ...]

Each program runs in an empty folder until its last picture is drawn; none trains.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from tests.pages import program_of  # noqa: E402  # found once the root is on the path

# Picture in this folder -> program, and the name that the program gives the picture.
PICTURES = {
    "placement.svg": (ROOT / "README.md", "placement.svg"),
    "fusion_placement.svg": (ROOT / "docs" / "pictures.md", "placement.svg"),
    "fusion_timeline.svg": (ROOT / "docs" / "pictures.md", "timeline.svg"),
} | {
    f"example_{path.stem}.svg": (path, f"{path.stem}.svg")
    for path in sorted((ROOT / "examples").glob("*.py"))
}
# Ends a program when it has drawn the picture that is asked for.
_UNTIL_DRAWN = """
import sys
import splitnet as sn

real = sn.draw

def draw(thing, path, **options):
    real(thing, path, **options)
    if str(path) == sys.argv[2]:
        raise SystemExit

sn.draw = draw
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), {"__name__": "__main__"})
"""


def redraw(picture: str) -> None:
    """Run a picture's program, and put what it draws into this folder."""
    source, name = PICTURES[picture]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        text = program_of(source) if source.suffix == ".md" else source.read_text()
        program.write_text(text, encoding="utf-8")
        subprocess.run(
            [sys.executable, "-c", _UNTIL_DRAWN, str(program), name],
            cwd=folder,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            check=True,
        )
        (HERE / picture).write_bytes(Path(folder, name).read_bytes())


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PICTURES:
        redraw(wanted)
        print(wanted, flush=True)
