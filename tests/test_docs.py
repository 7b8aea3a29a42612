"""What the docs say is what the code has, and examples in docstrings run."""

import ast
import doctest
import importlib
import inspect
import re
from functools import cache

import pytest

import splitnet
from splitnet.core.settings import OPTIONS
from tests.test_architecture import BELOW
from tests.test_pages import DOCS, PAGES, ROOT


@cache
def commands():
    from splitnet.cli.app import command

    def under(words, one):
        found = {} if hasattr(one, "commands") else {words: one}
        for name, child in getattr(one, "commands", {}).items():
            found |= under(f"{words} {name}".strip(), child)
        return found

    return under("", command) | {"": command}


OF_OTHERS = "--index --no-deps --target --strict --rounds --oneline --help"
OF_THE_ZOO = "--all --devices --save --others"  # of benchmarks/zoo.py


def test_options_in_pages_exist():
    known = {*OF_OTHERS.split(), *OF_THE_ZOO.split()}
    for command in commands().values():
        known.update(*(parameter.opts for parameter in command.params))
    strays = [
        f"{page.name}: {option}"
        for page in PAGES
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text("utf-8"))
        if option not in known
    ]
    assert strays == []


def test_every_command_is_documented_and_its_options_say_what_they_do():
    text = (DOCS / "command-line.md").read_text(encoding="utf-8")
    silent = [
        f"{words} {parameter.opts[-1]}"
        for words, command in commands().items()
        for parameter in command.params
        if parameter.opts[-1].startswith("-") and not parameter.help
    ]
    assert silent == []
    assert len(commands()) >= 13
    assert [name for name in commands() if name and f"`{name}" not in text] == []
    assert all(command.help for command in commands().values())


def test_every_public_name_is_documented():
    names = (DOCS / "api.md").read_text(encoding="utf-8")
    pages = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    missing = [
        name
        for name in splitnet.__all__
        if f"`{name}" not in names
        or name != "__version__"
        and f"::: {splitnet._MODULE_OF[name]}.{name}\n" not in pages
    ]
    assert missing == []


def test_messages_of_troubleshooting_are_those_of_the_code():
    """Between the dots, which stand for names; not those of Keras and TensorFlow."""
    page = (DOCS / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
    files = (ROOT / "splitnet").rglob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    joined = re.sub(r'"\s*\n\s*f?"', "", text)  # strings of several lines
    said = re.findall(r"\*\*`([^`]*)`\*\*(?! \(of )", page)
    bits = [bit.strip() for one in said for bit in one.split("...")]
    assert len(said) > 20
    assert [bit for bit in bits if bit not in joined] == []


def test_every_setting_is_documented():
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(OPTIONS)


def test_compatibility_says_what_the_package_asks_for():
    page = (DOCS / "compatibility.md").read_text(encoding="utf-8")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pythons = re.findall(r"Programming Language :: Python :: (3\.\d+)", text)
    assert '"tensorflow>=2.20,<2.22"' in text
    assert "| TensorFlow | 2.20, 2.21 |" in page
    assert '"keras>=3.12,<3.16"' in text
    assert "| Keras | 3.12 to 3.15 |" in page
    assert f"| Python | {', '.join(pythons)} |" in page


def test_examples_in_docstrings_hold():
    """Where no framework is needed; what differs is printed with its file and line."""
    results = [doctest.testmod(importlib.import_module(name)) for name in BELOW]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) >= 15


@pytest.mark.tf
def test_signatures_on_the_page_of_names_are_the_codes():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `([\w.]+)\((.*?)\)` \|", text, re.MULTILINE)
    faults = []
    for name, arguments in shown:
        thing = splitnet
        for word in name.split("."):
            thing = getattr(thing, word)
        known = inspect.signature(thing).parameters
        for argument in arguments.split(", "):
            word, _, default = argument.lstrip("*").partition("=")
            if word in ("", "..."):
                continue
            if word not in known:
                faults.append(f"{name} has no {word}")
            elif default and repr(known[word].default) != default.replace('"', "'"):
                faults.append(f"{name}: {argument}")
        left_out = [
            word
            for word, parameter in known.items()
            if "..." not in arguments
            and word not in ("self", *re.findall(r"\w+", arguments))
            and parameter.kind != parameter.VAR_KEYWORD
        ]
        faults += [f"{name} hides {word}" for word in left_out]
    assert len(shown) > 30
    assert faults == []


def test_lines_of_the_cheat_sheet_are_calls_of_the_code():
    owners = {"sn": splitnet, "net": splitnet.Net, "plan": splitnet.Plan}
    text = (DOCS / "cheat-sheet.md").read_text(encoding="utf-8")
    lines = re.findall(r"`([^`]*\([^`]*)`", text)
    calls, unknown = [], []
    for node in (node for line in lines for node in ast.walk(ast.parse(line))):
        match node:
            case ast.Call(ast.Attribute(ast.Name(owner), name)) if owner in owners:
                verb = inspect.signature(getattr(owners[owner], name))
                calls.append(name)
            case _:
                continue
        if not any(p.kind is p.VAR_KEYWORD for p in verb.parameters.values()):
            given = [keyword.arg for keyword in node.keywords]
            unknown += [f"{name}({n}=)" for n in given if n not in verb.parameters]
    assert len(calls) >= 35
    assert unknown == []
