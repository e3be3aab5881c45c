"""Rewrites and checks the links of the book.

As a preprocessor of mdBook, it points links that leave docs/ (relative on GitHub) to the repository at BOOK_REPOSITORY
(https://host/owner/name/blob/main); without BOOK_REPOSITORY they become text. It allows line breaks after separators in long
names in tables, and replaces `->` with one character, so that it does not break.
`book.py check DIRECTORY` lists the broken links of a built book.
"""

import json
import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote

REPOSITORY = os.environ.get("BOOK_REPOSITORY", "").rstrip("/")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)+[^)\s]+)\)")
# Code in a row of a table, except where it is the text of a link.
CODE = re.compile(r"(?<![\[`])`([^`]+)`(?!`)")
SEPARATOR = re.compile("(?<=%s)(?=\\w)" % "|".join(f"&#{ord(char):02};" for char in "._/:,"))


def _code(match):
    text = "".join(char if char.isalnum() or char in " |" else f"&#{ord(char)};" for char in match[1].replace("\\|", "|"))
    return f"<code>{SEPARATOR.sub('<wbr>', text)}</code>".replace("|", "\\|")


def _breakable(line):
    """Allows line breaks after separators in the long names of a table row."""
    return CODE.sub(_code, line) if line.lstrip().startswith("|") else line


def _repository_link(page, match):
    text, target = match.groups()
    path = os.path.normpath(os.path.join("docs", os.path.dirname(page), target))
    if path.startswith("docs/"):
        return match[0]
    return f"[{text}]({REPOSITORY}/{path})" if REPOSITORY else text


def _rewrite(items):
    for item in items:
        if chapter := item.get("Chapter") if isinstance(item, dict) else None:
            page = chapter.get("path") or ""
            content = re.sub(r"(?<=[ (])->(?=[ )\n])", "→", chapter["content"])
            content = LINK.sub(lambda match: _repository_link(page, match), content)
            chapter["content"] = "\n".join(map(_breakable, content.split("\n")))
            _rewrite(chapter["sub_items"])


def _broken_links(root):
    pages = {page: page.read_text() for page in root.rglob("*.html") if page.name not in ("404.html", "print.html", "toc.html")}
    anchors = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    for page, text in pages.items():
        for link in re.findall(r'(?:href|src|srcset)="([^"]+)"', text):
            file, _, anchor = unquote(link).partition("#")
            target = (page.parent / file).resolve() if file else page
            if not re.match("[a-z]+:", link) and (not target.is_file() or (anchor and target in pages and anchor not in anchors[target])):
                yield f"{page.relative_to(root)}: {link}"


match sys.argv[1:]:
    case ["check", directory]:
        broken = list(_broken_links(Path(directory).resolve()))
        print(*broken, sep="\n", end=f"{len(broken)} broken links in the book\n")
        sys.exit(bool(broken))
    case ["supports", _]:
        pass
    case _:
        _, book = json.load(sys.stdin)
        _rewrite(book["items"])
        json.dump(book, sys.stdout)
