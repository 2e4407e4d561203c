"""Full-text search over conversations: messages, answers, thinking, names, system prompts."""

import sqlite3
from dataclasses import dataclass, replace

from dsv4chat.core.text import one_line

LIST_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the list. `excerpt` is where the search matched, with its place in it."""

    id: str
    title: str
    changed: float
    turns: int
    excerpt: str = ""
    found: tuple[int, int] = (0, 0)
    in_thinking: bool = False


_ROWS = """SELECT c.id, COALESCE(NULLIF(c.name, ''), (SELECT substr(text, 1, 300) FROM turns
    WHERE conversation = c.id ORDER BY number LIMIT 1), ''), c.changed,
    (SELECT COUNT(*) FROM turns WHERE conversation = c.id), c.system
    FROM conversations c WHERE c.deleted IS NULL"""


def find(connection: sqlite3.Connection, words: list[str]) -> list[Entry]:
    """Conversations, newest first, in which one turn, the name or the system prompt has all words.

    Case does not count; parts of words do.
    """
    hits = _hits(connection, words) if words else {}
    found: list[Entry] = []
    for row in connection.execute(f"{_ROWS} ORDER BY c.changed DESC"):
        conversation_id, title, changed, turns, system = row
        if not turns:
            continue
        entry = Entry(conversation_id, one_line(title, 200) or "(empty)", changed, turns)
        if words:
            hit = hits.get(conversation_id) or ((title, ""), (system, ""))
            places = [place for pair in hit for place in _places(pair, words)]
            if places:
                excerpt, span, thinking = places[0]
                entry = replace(entry, excerpt=excerpt, found=span, in_thinking=thinking)
            elif conversation_id not in hits:
                continue
        found.append(entry)
        if len(found) == LIST_LIMIT:
            break
    return found


def _hits(
    connection: sqlite3.Connection, words: list[str]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Conversation -> text and thinking of its newest turn that has every word."""
    long = [word for word in words if len(word) >= 3]  # the index knows groups of three letters
    clauses, values = [], []
    if long:
        clauses.append("number IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(" AND ".join('"' + word.replace('"', '""') + '"' for word in long))
    for word in words:
        if len(word) < 3:
            pattern = word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            clauses.append("(text LIKE ? ESCAPE '\\' OR reasoning LIKE ? ESCAPE '\\')")
            values += [f"%{pattern}%"] * 2
    rows = connection.execute(
        f"SELECT conversation, text, reasoning, MAX(number) FROM turns "
        f"WHERE {' AND '.join(clauses)} GROUP BY conversation",
        values,
    )
    return {row[0]: ((row[1], row[2]),) for row in rows}


def _places(texts: tuple[str, str], words: list[str]) -> list[tuple[str, tuple[int, int], bool]]:
    """An excerpt around the first word, if the texts together have all words."""
    lower = [text.lower() for text in texts]
    if not all(any(word.lower() in text for text in lower) for word in words):
        return []
    for thinking, text in enumerate(lower):
        at = text.find(words[0].lower())
        if at >= 0:
            start = max(0, at - 30)
            before = one_line("." + texts[thinking][start:at] + ".", 400)[1:-1]
            before = ("…" if start else "") + before.lstrip()
            rest = one_line(texts[thinking][at : at + 160], 160)
            span = (len(before), len(before) + len(words[0]))
            return [(before + rest, span, bool(thinking))]
    return []
