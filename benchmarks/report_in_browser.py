"""Ask whether the report works in a real browser, from 1 to 1,000 branches.

Each report is opened by a headless Chromium together with a probe that presses keys,
points at boxes and reads what changed; whatever the page writes to its console counts
as a fault. Seconds are of the processor, to write the report with the moves of its 50
heaviest branches. Milliseconds are those to open all boxes / zoom once / light a path.
Screenshots, light and dark, are left to be looked at.

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

PROBE = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
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
    print(f"{'report':<16} {'KiB':>6} {'seconds':>8} {'milliseconds':>22}  what failed")
    for name, (plan, also) in reports().items():
        start = time.process_time()
        page = report_html(plan, **also)
        seconds = time.process_time() - start
        spent, faults = check(browser, page, name, arguments.out)
        good = good and not faults
        said = ", ".join(faults) or "-"
        size = len(page.encode()) / 1024
        print(
            f"{name:<16} {size:>6.0f} {seconds:>8.2f} {spent:>22}  {said}", flush=True
        )
    return 0 if good else 1


def reports() -> dict[str, tuple[Plan | Audit, dict[str, Any]]]:
    """The plans whose reports are opened, and what else is in them."""
    siamese, large = plans.siamese(), plans.towers(300)
    strayed = Finding("forward", "left", "gpu:0", "cpu:0", "left ran on cpu:0.")
    row = Row("left", "gpu:0", forward="cpu:0", backward="gpu:0", ops=7)
    return {
        "one": (plans.one(), {}),
        "siamese": (siamese, {}),
        "audited": (Audit(siamese, (row,), (strayed,), {}), {}),
        "measured": (siamese, {"measured": siamese.timeline}),
        "towers-30": (plans.towers(30), {}),
        "chain-300": (plans.chain(300), {}),
        "towers-300": (large, {}),
        "measured-300": (large, {"measured": large.timeline}),
        "tangle-300": (plans.tangle(300), {}),
        "nasty": (plans.nasty(), {}),
        "tangle-1000": (plans.tangle(1000, 8), {}),
    }


def check(browser: str, page: str, name: str, out: Path) -> tuple[str, list[str]]:
    """Open one page, probe it, take its pictures: times, and the probes that failed."""
    plain, probed = out / f"{name}.html", out / f"{name}.probe.html"
    plain.write_text(page, encoding="utf-8")
    page = page.replace("<head>", "<head>" + CATCH, 1)
    probed.write_text(
        page.replace("</body>", f"<script>{PROBE}</script></body>"), encoding="utf-8"
    )
    found = run(browser, probed, "--dump-dom")
    probed.unlink()
    match = re.search(r'data-found="([^"]*)"', found)
    if match is None:
        return "", ["the page's script did not end"]
    values = json.loads(match[1].replace("&quot;", '"').replace("&amp;", "&"))
    spent = values.pop("milliseconds")
    faults = [f"console: {text}" for text in values.pop("errors")]
    for suffix, flag in (("light", 1), ("dark", 0)):
        shot = out.resolve() / f"{name}-{suffix}.png"
        run(
            browser,
            plain,
            f"--screenshot={shot}",
            f"--blink-settings=preferredColorScheme={flag}",
        )
    return spent, faults + [probe for probe, passed in values.items() if not passed]


def run(browser: str, page: Path, *options: str) -> str:
    """What the browser prints."""
    fixed = ["--headless", "--disable-gpu", "--hide-scrollbars"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        fixed.append("--no-sandbox")  # Chromium refuses to start as root otherwise
    window = ("--window-size=1200,2200", "--timeout=4000")
    command = [browser, *fixed, *window, *options, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=120)
    return done.stdout.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
