"""Links of the book.

As a preprocessor of mdBook: links that leave docs/ are relative on GitHub; in the book they lead to the repository at
BOOK_REPOSITORY (https://host/owner/name/blob/main), or are text without it. `book.py check DIRECTORY` lists the links of a
built book that lead nowhere.
"""

import json
import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote

REPOSITORY = os.environ.get("BOOK_REPOSITORY", "").rstrip("/")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)+[^)\s]+)\)")


def _outside(page, match):
    text, target = match.groups()
    path = os.path.normpath(os.path.join("docs", os.path.dirname(page), target))
    if path.startswith("docs/"):
        return match[0]
    return f"[{text}]({REPOSITORY}/{path})" if REPOSITORY else text


def _rewrite(items):
    for item in items:
        if chapter := item.get("Chapter") if isinstance(item, dict) else None:
            page = chapter.get("path") or ""
            chapter["content"] = LINK.sub(lambda match: _outside(page, match), chapter["content"])
            _rewrite(chapter["sub_items"])


def _broken(root):
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
        broken = list(_broken(Path(directory).resolve()))
        print(*broken, sep="\n", end=f"{len(broken)} broken links in the book\n")
        sys.exit(bool(broken))
    case ["supports", _]:
        pass
    case _:
        _, book = json.load(sys.stdin)
        _rewrite(book["items"])
        json.dump(book, sys.stdout)
