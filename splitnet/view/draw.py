"""Draw a plan, a timeline or an audit into a file; the suffix says how."""

import os
from pathlib import Path

from splitnet.core.errors import SplitnetError
from splitnet.core.plan import Plan
from splitnet.view.dot import dot_of
from splitnet.view.render import format_of, render_dot, write_beside

__all__ = ["draw", "html_of", "svg_of"]


def draw(
    thing: Plan,
    path: str | os.PathLike[str],
    *,
    other: Plan | None = None,
    calls: str | None = None,
) -> Path:
    """Draw a placement diagram into a file, whole or not at all; show nothing.

    Args:
        thing: what to draw.
        path: where to; ".svg", ".png", ".pdf" or ".dot".
        other: an earlier plan; what moved since is marked.
        calls: a part to open into its calls.

    Returns:
        The path written.

    Raises:
        SplitnetError: the suffix, the part or the thing is none that can be drawn, the
            file cannot be written, or no Graphviz is here (the DOT text is then left
            beside `path`).
    """
    kind = format_of(path)
    text = dot_of(thing, other=other, calls=calls)
    if kind == "dot":
        return write_beside(path, text.encode())
    return write_beside(path, _rendered(text, kind, Path(path)))


def _rendered(text: str, kind: str, path: Path, program: str = "dot") -> bytes:
    """The picture; if there is no Graphviz, leave its DOT text behind and say so."""
    try:
        return render_dot(text, kind, program=program)
    except SplitnetError as error:
        left = write_beside(path.with_suffix(".dot"), text.encode())
        raise SplitnetError(f"{error} The DOT text is in {str(left)!r}.") from None


def svg_of(plan: Plan) -> str:
    """Draw a plan as SVG text, for a notebook or a page; no XML prolog."""
    picture = render_dot(dot_of(plan), "svg").decode()
    return picture[picture.index("<svg") :]


def html_of(plan: Plan) -> str:
    """Show a plan as a piece of HTML: the diagram, and nothing that needs a script."""
    return f'<div style="overflow:auto;background:white">{svg_of(plan)}</div>'
