"""Contents of the documents: the commands in their indented blocks, and the texts of their fenced ones."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

from process import Skip

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "charts/tokometer/README.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "runbooks"),
]
# A block consists of commands if its first word is one of these.
PROGRAMS = ("tokometer", "kubectl", "until", "helm", "curl", "docker", "cargo", "make", "tcpdump", "echo", "prometheus")


def blocks(file):
    """The indented blocks of a document, unindented."""
    found, block, fenced = [], [], False
    for line in [*file.read_text().splitlines(), ""]:
        fenced ^= line.lstrip().startswith("```")
        if not fenced and re.match(r" {4,}\S", line):
            block.append(line)
        elif block:
            indent = min(len(line) - len(line.lstrip()) for line in block)
            found.append([line[indent:] for line in block])
            block = []
    return found


def fenced(file, language):
    """The fenced blocks of this language."""
    return [piece.split("```")[0] for piece in file.read_text().split(f"```{language}\n")[1:]]


def is_shell(block):
    return block[0].split()[0] in PROGRAMS


def commands(file):
    """Each command of a document as written, without its trailing comment; lines that end with a backslash are joined."""
    found = []
    for block in filter(is_shell, blocks(file)):
        lines = "\n".join(block).replace("\\\n", " ").splitlines()
        found += [" ".join(_without_comment(line).split()) for line in lines]
    return found


def _without_comment(line):
    # An unquoted # with a space before it starts a comment.
    at = line.find(" #")
    if at < 0:
        return line
    try:
        shlex.split(line[:at])
    except ValueError:
        return line
    return line[:at]


def promtool(kind, *arguments):
    """promtool's output for a file that it must accept."""
    if not shutil.which("promtool-3"):
        raise Skip("no promtool (component promtool-3)")
    done = subprocess.run(["promtool-3", "check", kind, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout
