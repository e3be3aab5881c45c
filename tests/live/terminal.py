"""A terminal of a given size, in which programs run as a user would start them: a separate tmux server."""

import os
import re
import shutil
import subprocess
import tempfile
from html import escape
from pathlib import Path

from process import Skip, until

# Size of a character in the pictures.
CELL_WIDTH, CELL_HEIGHT = 8.2, 17
COLORS = {31: "r", 32: "g", 33: "y", 36: "c"}


class Terminal:
    """A shell in a terminal. `with` stops both."""

    def __init__(self, width=80, height=24, **environment):
        if not shutil.which("tmux"):
            raise Skip("no tmux")
        self.directory = tempfile.TemporaryDirectory(prefix="terminal-")
        self.socket = Path(self.directory.name) / "tmux"
        inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
        self.environment = {**inherited, "LANG": "C.UTF-8", "TERM": "xterm-256color", **environment}
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), "sh")
        self._tmux("set-option", "-g", "status", "off")
        self.resize(width, height)
        self.wait_for(re.compile(r"^[#$]", re.M))
        self.type("PS1='shell> '; clear")
        self.wait_for(re.compile(r"\Ashell>"))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and kind is not Skip:
            print("    the terminal shows:", *self.text().splitlines(), sep="\n      ")
        self._tmux("kill-server")
        self.directory.cleanup()

    def _tmux(self, *arguments):
        done = subprocess.run(["tmux", "-u", "-S", self.socket, *arguments], capture_output=True, text=True, check=False, env=self.environment)
        assert done.returncode == 0, f"tmux {arguments[0]}: {done.stderr}"
        return done.stdout

    def resize(self, width, height):
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def type(self, text, enter=True):
        """Types a line and presses Enter."""
        self._tmux("send-keys", "-l", text)
        if enter:
            self.press("Enter")

    def press(self, *keys):
        self._tmux("send-keys", *keys)

    def text(self):
        return self._tmux("capture-pane", "-p")

    def codes(self):
        """The text with its style codes."""
        return self._tmux("capture-pane", "-p", "-e", "-N")

    def wait_for(self, *words, seconds=15.0):
        """Waits until all of these words and patterns are on the screen; returns its text."""

        def text_if_complete():
            text = self.text()
            found = (word.search(text) if isinstance(word, re.Pattern) else word in text for word in words)
            return text if all(found) else None

        return until(text_if_complete, lambda: f"{words} in:\n{self.text()}", seconds)


def _apply_code(style, code):
    """The style after a code (ECMA-48, SGR): bold, faint, inverse, and the color."""
    # The first eight of 256 colors (38;5;N) are the basic ones.
    code = re.sub(r"38;5;([0-7])(?=;|$)", r"3\1", code)
    for number in (int(number or 0) for number in code.split(";")):
        match number:
            case 0:
                style = {}
            case 1 | 2 | 7:
                style = style | {{1: "b", 2: "d", 7: "i"}[number]: True}
            case 22:
                style = {name: value for name, value in style.items() if name not in "bd"}
            case 27:
                style = {name: value for name, value in style.items() if name != "i"}
            case _ if number in COLORS or number == 39:
                style = style | {"color": COLORS.get(number)}
    return style


def _rows(codes, height):
    """The SVG elements of each row of a terminal's contents, with text as text."""
    rows, style = [], {}
    for row, line in enumerate(codes.splitlines()[:height]):
        elements, column, y = [], 0, 58 + row * CELL_HEIGHT
        for code, text in re.findall(r"\x1b\[([0-9;]*)m|([^\x1b]+)", line):
            if not text:
                style = _apply_code(style, code)
                continue
            classes = " ".join([name for name in "bdi" if name in style] + ([style["color"]] if style.get("color") else []))
            # Each run of text has its own position, so that fonts cannot shift the next run.
            x, length = 18 + column * CELL_WIDTH, len(text) * CELL_WIDTH
            if "i" in style:
                elements.append(f'<rect x="{x:g}" y="{y - 13:g}" width="{length:g}" height="{CELL_HEIGHT}" fill="#d7dae0"/>')
            if text.strip():
                lead = len(text) - len(text.lstrip())
                shown = text.strip()
                attributes = f'x="{x + lead * CELL_WIDTH:g}" y="{y:g}" textLength="{len(shown) * CELL_WIDTH:g}"'
                elements.append(f'<text {attributes}{f" class={chr(34)}{classes}{chr(34)}" if classes else ""}>{escape(shown)}</text>')
            column += len(text)
        rows.append("\n".join(elements))
    return rows


def _document(content, width, height, label, css=""):
    wide, high = 36 + width * CELL_WIDTH, 58 + height * CELL_HEIGHT
    css = "text{font:13.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d7dae0;white-space:pre}" + css
    css += ".b{font-weight:700;fill:#fff}.d{fill:#7d8590}.g{fill:#3fb950}.y{fill:#d29922}.r,.r.b{fill:#f85149}.c{fill:#39c5cf}.i{fill:#0d1117}"
    dots = "".join(f'<circle cx="{x}" cy="18" r="5.5" fill="{fill}"/>' for x, fill in ((20, "#f85149"), (38, "#d29922"), (56, "#3fb950")))
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" height="{high:g}" '
    opening += f'role="img" aria-label="{escape(label)}">'
    background = f'<rect width="{wide:g}" height="{high:g}" rx="10" fill="#0d1117"/>'
    return "\n".join([opening, f"<style>{css}</style>", background, dots, *filter(None, content), "</svg>", ""])


def svg(codes, width, height, label):
    """An SVG of the terminal's contents."""
    return _document(_rows(codes, height), width, height, label)


def moving_svg(screens, seconds, width, height, label):
    """An SVG that shows the contents of a terminal one after the other, each for `seconds`, in a loop. It contains an
    unchanged row once. With `prefers-reduced-motion` it shows the last contents."""
    frames = [_rows(codes, height) for codes in screens]
    frames = [rows + [""] * (height - len(rows)) for rows in frames]
    count, content, periods = len(frames), [], set()
    for row in range(height):
        begin = 0
        for end in range(1, count + 1):
            if end == count or frames[end][row] != frames[begin][row]:
                if frames[begin][row] and (begin, end) != (0, count):
                    periods.add((begin, end))
                    content.append(f'<g class="f f{begin}-{end}{" last" if end == count else ""}">{frames[begin][row]}</g>')
                else:
                    content.append(frames[begin][row])
                begin = end
    css = f".f{{visibility:hidden;animation:{count * seconds:g}s step-end infinite}}"
    for begin, end in sorted(periods):
        first, last = 100 * begin / count, 100 * end / count
        hidden = "" if begin == 0 else "0%{visibility:hidden}"
        css += f"@keyframes k{begin}-{end}{{{hidden}{first:.4g}%{{visibility:visible}}{last:.4g}%{{visibility:{'visible' if end == count else 'hidden'}}}}}"
        css += f".f{begin}-{end}{{animation-name:k{begin}-{end}}}"
    css += "@media(prefers-reduced-motion){.f{animation:none}.last{visibility:visible}}"
    return _document(content, width, height, label, css)
