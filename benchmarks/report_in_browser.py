"""Ask whether the report works in a real browser, from 1 to 300 branches.

Each report is opened by a headless Chromium together with a probe that presses keys,
points at boxes and reads what changed; whatever the page writes to its console counts
as a fault. Screenshots, light and dark, are left to be looked at.

    python benchmarks/report_in_browser.py [--browser chromium] [--out shots]

Prints a row per report; ends with 1 if any fails, with 2 if there is no browser.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from splitnet.core.audit import Audit, Finding, Row
from splitnet.core.plan import Plan
from splitnet.view.report import report_html
from tests.view import plans

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

# Runs in the page after its own script; the result is read from the dumped document.
PROBE = """
<script>
window.addEventListener("load", () => {
  const found = {errors: window.faults};
  const frame = document.querySelector(".diagram"), svg = frame.querySelector("svg");
  const view = () => svg.getAttribute("viewBox").split(" ").map(Number);
  const press = (key) => frame.dispatchEvent(
    new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
  const start = view();
  press("+"); found.key_zooms = view()[2] < start[2];
  press("ArrowRight"); found.key_moves = view()[0] > start[0];
  press("0"); found.key_fits = Math.abs(view()[2] - start[2]) < 0.1;
  frame.dispatchEvent(new WheelEvent("wheel",
    {deltaY: -1, ctrlKey: true, clientX: 300, clientY: 300, cancelable: true}));
  found.wheel_zooms = view()[2] < start[2];
  document.querySelector("[data-do=fit]").click();
  found.button_fits = Math.abs(view()[2] - start[2]) < 0.1;
  const before = view();
  frame.dispatchEvent(new PointerEvent("pointerdown", {clientX: 400, clientY: 300}));
  window.dispatchEvent(new PointerEvent("pointermove", {clientX: 340, clientY: 300}));
  window.dispatchEvent(new PointerEvent("pointerup", {}));
  found.drag_moves = view()[0] > before[0];
  const facts = document.querySelector(".facts");
  const nodes = [...svg.querySelectorAll("g.node[tabindex]")];
  nodes[0].dispatchEvent(new PointerEvent("pointerenter"));
  found.hover_tells = !facts.hidden && facts.textContent.includes("reason");
  facts.hidden = true; window.focus(); nodes.at(-1).focus();
  found.focus_tells = !facts.hidden && facts.textContent.length > 10;
  const edge = svg.querySelector("g.edge");
  if (edge) {
    edge.dispatchEvent(new PointerEvent("pointerenter"));
    found.line_tells = facts.textContent.includes("→");
  }
  const filter = document.querySelector(".filter input");
  if (filter) {
    filter.value = "no such branch"; filter.dispatchEvent(new Event("input"));
    const rows = [...document.querySelectorAll("#part-rows tr")];
    found.filter_hides = rows.every((row) => row.hidden);
  }
  found.fits_width = document.documentElement.scrollWidth <= window.innerWidth;
  document.body.setAttribute("data-found", JSON.stringify(found));
});
</script>
"""
CATCH = (
    "<script>window.faults = [];"
    "window.addEventListener('error', (e) => window.faults.push(String(e.message)));"
    "console.error = (...t) => window.faults.push(t.join(' '));</script>"
)


def main() -> int:
    """Check every report and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--browser", help="the program; found by itself if it can be")
    parser.add_argument("--out", type=Path, default=Path("shots"))
    arguments = parser.parse_args()
    names = [arguments.browser] if arguments.browser else BROWSERS
    browser = next((found for name in names if (found := shutil.which(name))), None)
    if browser is None:
        print(f"no browser here; looked for {', '.join(names)}", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    good = True
    print(f"{'report':<16} {'KiB':>6} {'seconds':>8}  what failed")
    for name, (plan, also) in reports().items():
        start = time.perf_counter()
        page = report_html(plan, **also)
        seconds = time.perf_counter() - start
        faults = check(browser, page, name, arguments.out)
        good = good and not faults
        said = ", ".join(faults) or "-"
        print(f"{name:<16} {len(page.encode()) / 1024:>6.0f} {seconds:>8.2f}  {said}")
    return 0 if good else 1


def reports() -> dict[str, tuple[Plan, dict[str, Any]]]:
    """The plans whose reports are opened, and what else is in them."""
    siamese, large = plans.siamese(), plans.towers(300)
    strayed = Finding("forward", "left", "gpu:0", "cpu:0", "left ran on cpu:0.")
    row = Row("left", "gpu:0", forward="cpu:0", backward="gpu:0", ops=7)
    return {
        "one": (plans.one(), {}),
        "siamese": (siamese, {}),
        "audited": (siamese, {"audit": Audit(siamese, (row,), (strayed,), {})}),
        "measured": (siamese, {"measured": siamese.timeline}),
        "towers-30": (plans.towers(30), {}),
        "chain-300": (plans.chain(300), {}),
        "towers-300": (large, {}),
        "measured-300": (large, {"measured": large.timeline}),
        "tangle-300": (plans.tangle(300), {}),
    }


def check(browser: str, page: str, name: str, out: Path) -> list[str]:
    """Open one page, probe it, take its pictures; the probes that failed."""
    plain, probed = out / f"{name}.html", out / f"{name}.probe.html"
    plain.write_text(page, encoding="utf-8")
    page = page.replace("<head>", "<head>" + CATCH, 1)
    probed.write_text(page.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    found = run(browser, probed, "--dump-dom")
    probed.unlink()
    match = re.search(r'data-found="([^"]*)"', found)
    if match is None:
        return ["the page's script did not end"]
    values = json.loads(match[1].replace("&quot;", '"').replace("&amp;", "&"))
    faults = [f"console: {text}" for text in values.pop("errors")]
    for suffix, flag in (("light", 1), ("dark", 0)):
        shot = out.resolve() / f"{name}-{suffix}.png"
        run(
            browser,
            plain,
            f"--screenshot={shot}",
            f"--blink-settings=preferredColorScheme={flag}",
        )
    return faults + [probe for probe, passed in values.items() if not passed]


def run(browser: str, page: Path, *options: str) -> str:
    """What the browser prints."""
    fixed = ["--headless", "--disable-gpu", "--hide-scrollbars"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        fixed.append("--no-sandbox")  # Chromium refuses to start as root otherwise
    window = ("--window-size=1200,2200", "--virtual-time-budget=3000")
    command = [browser, *fixed, *window, *options, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=120)
    return done.stdout.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
