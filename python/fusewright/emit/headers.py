"""The headers that an emitted file carries, cut down to what its kernels reach."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_NAME = re.compile(r"[A-Za-z_]\w*")
_CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)")
_USE_OF_MACRO = re.compile(r"[A-Z_]+\((.*)\)$")  # one that makes definitions
_NOT_A_NAME = frozenset("template operator decltype static_assert sizeof alignas if constexpr return".split())


def resolve(text: str, known: dict[str, bool]) -> str:
    """The text without the conditions whose answer is known here (`FW_EMULATOR`, include guards); others stay."""
    kept: list[str] = []
    stack: list[list] = []  # per open condition: is it known, is its branch kept, has one of its branches been kept
    for line in text.splitlines():
        match = _CONDITION.match(line)
        if match is None:
            if all(entry[1] for entry in stack):
                kept.append(line)
            continue
        word, rest = match[1], match[2].split("//")[0].strip()
        if word in ("if", "ifdef", "ifndef"):
            answer = _answer(word, rest, known)
            stack.append([answer is not None, answer is not False, answer is True])
        elif word == "else" and stack[-1][0]:
            stack[-1][1] = not stack[-1][2]
            continue
        elif word == "elif" and stack[-1][0]:
            if stack[-1][2]:
                stack[-1][1] = False
            else:  # the first condition that is still open
                stack[-1] = [False, True, False]
                kept.append(f"#if {rest}")
            continue
        elif word == "endif":
            if stack.pop()[0]:
                continue
            if all(entry[1] for entry in stack):
                kept.append(line)
            continue
        if not stack[-1][0] and all(entry[1] for entry in stack):
            kept.append(line)
    return "\n".join(kept) + "\n"


def _answer(word: str, rest: str, known: dict[str, bool]) -> bool | None:
    if word == "ifndef" and rest.startswith("FW_KERNELS_"):
        return True
    name = rest.removeprefix("defined(").removesuffix(")") if rest.count("defined") == 1 else rest
    if name.startswith("!defined("):
        inner = known.get(name.removeprefix("!defined("))
        return None if inner is None else not inner
    if name not in known:
        return None
    return known[name] != (word == "ifndef")


@dataclass
class Definition:
    """One definition at the top of a namespace, with its comment: a function, a type, a macro, or a whole #if block."""

    text: str
    names: set[str] = field(default_factory=set)


def definitions(text: str) -> list[Definition]:
    """What stands in a header, in order; namespaces, includes and include guards are left out."""
    found: list[Definition] = []
    lines, comment = text.splitlines(), []
    i = 0
    while i < len(lines):
        line = lines[i].rstrip()
        stripped = line.strip()
        if not stripped:
            comment = []  # a remark about what follows in general
        elif stripped.startswith("//"):
            comment.append(line)
        elif re.match(
            r"(#pragma once|#include|#define FW_KERNELS_|#undef|namespace \w+ \{|\}  // namespace|namespace \{)",
            stripped,
        ):
            comment = []
        else:
            end = _end_of(lines, i)
            body = "\n".join(lines[i : end + 1])
            found.append(Definition("\n".join([*comment, body]), _names(body)))
            comment, i = [], end
        i += 1
    return found


def _end_of(lines: list[str], begin: int) -> int:
    """The last line of what begins here."""
    if lines[begin].lstrip().startswith("#if"):
        depth = 0
        for i in range(begin, len(lines)):
            word = _CONDITION.match(lines[i])
            depth += 0 if word is None else word[1].startswith("if") - (word[1] == "endif")
            if depth == 0:
                return i
    if lines[begin].lstrip().startswith("#"):
        i = begin
        while lines[i].endswith("\\"):
            i += 1
        return i
    if _USE_OF_MACRO.match(lines[begin]):
        return begin
    depth = 0
    for i in range(begin, len(lines)):
        code = re.sub(r'"(\\.|[^"\\])*"', '""', lines[i]).split("//")[0].rstrip()
        if code.lstrip().startswith("#"):
            continue
        depth += code.count("{") - code.count("}") + code.count("(") - code.count(")")
        if depth == 0 and code.endswith((";", "}")):
            return i
    return len(lines) - 1


def _names(body: str) -> set[str]:
    if body.startswith("#if"):
        inner = "\n".join(line for line in body.splitlines() if not _CONDITION.match(line))
        return set().union(*(part.names for part in definitions(inner)))
    if match := re.match(r"#define (\w+)", body):
        return {match[1]}
    if match := _USE_OF_MACRO.match(body):
        return set(_NAME.findall(match[1])) - {"T", "bool"}
    head = re.sub(r"template <[^{;]*?>\s*(?=\w)", "", body, count=1) if body.startswith("template") else body
    if match := re.match(
        r"(?:struct|class|union|enum class|enum)\s+(?:alignas\((?:[^()]|\([^()]*\))*\)\s+)?(\w+)", head
    ):
        return {match[1]}
    if match := re.match(r"using (\w+)", head):
        return {match[1]}
    head = re.split(r"[{;]", head, maxsplit=1)[0]
    if match := re.search(r"(\w+)::~?\w+\(", head):  # a member that is defined outside of its class
        return {match[1]}
    before = re.sub(r"\[\[.*?\]\]|__align__\(\d+\)|__attribute__\(\(.*?\)\)", "", head)
    if "(" in before and ("=" not in before or before.index("(") < before.index("=")):
        words = _NAME.findall(before.split("(")[0])
        return {words[-1]} if words and words[-1] not in _NOT_A_NAME else set()
    declared = set(re.findall(r"([A-Za-z_]\w*)(?:\[[^\]]*\])*\s*=(?!=)", before))
    return declared or set(_NAME.findall(before)[-1:])


def trimmed(parts: list[Definition], roots: Iterable[str]) -> list[Definition]:
    """The definitions that the texts reach by name."""
    by_name: dict[str, list[int]] = {}
    for number, part in enumerate(parts):
        for name in part.names:
            by_name.setdefault(name, []).append(number)
    wanted: set[int] = {number for number, part in enumerate(parts) if not part.names}
    open_texts = [*roots, *(parts[number].text for number in wanted)]
    while open_texts:
        for name in set(_NAME.findall(_without_comments(open_texts.pop()))):
            for number in by_name.get(name, ()):
                if number not in wanted:
                    wanted.add(number)
                    open_texts.append(parts[number].text)
    return [part for number, part in enumerate(parts) if number in wanted]


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


def in_namespace(name: str, parts: list[Definition]) -> str:
    """The definitions, with an empty line where one is longer than a line."""
    text = ""
    for part in parts:
        long = "\n" in part.text
        text += ("\n" if long and text and not text.endswith("\n\n") else "") + part.text + ("\n\n" if long else "\n")
    return f"namespace {name} {{\n\n{text.strip()}\n\n}}  // namespace {name}\n"
