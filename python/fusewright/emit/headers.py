"""The headers that an emitted file carries, cut down to what its kernels reach."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_NAME = re.compile(r"[A-Za-z_]\w*")
_CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)")
_TEMPLATE = r"template <(?:[^<>{;]|<[^<>]*>)*>\s*"  # a template's parameters
_USE_OF_MACRO = re.compile(r"[A-Z_]+\((.*)\)$")  # one that makes definitions
_NOT_A_NAME = frozenset("template operator decltype static_assert sizeof alignas if constexpr return".split())


def resolve(text: str, known: dict[str, bool]) -> str:
    """The text without the conditions whose answer is known here (`FW_EMULATOR`, include guards); others stay, without
    the parts that are known."""
    kept: list[str] = []
    stack: list[dict[str, bool]] = []  # of each open condition

    def write(line: str) -> None:
        if all(entry["kept"] for entry in stack[:-1]):
            kept.append(line)

    for line in text.splitlines():
        match = _CONDITION.match(line)
        if match is None:
            if all(entry["kept"] for entry in stack):
                kept.append(line)
            continue
        word, rest = match[1], match[2].split("//")[0].strip()
        if word == "endif":
            if stack[-1]["written"]:  # its first line
                write(line)
            stack.pop()
            continue
        if word not in ("elif", "else"):
            stack.append({"written": False, "kept": False, "decided": False})
        entry = stack[-1]
        answer = not entry["decided"]
        if answer and word != "else":
            answer = _answer("if" if word == "elif" else word, rest, known)
        entry["kept"] = answer is not False
        if isinstance(answer, str):
            write(f"#{'elif' if entry['written'] else 'if'} {answer}")
            entry["written"] = True
        elif answer:
            if entry["written"]:
                write("#else")
            entry["decided"] = True
    return "\n".join(kept) + "\n"


def _answer(word: str, rest: str, known: dict[str, bool]) -> bool | str:
    """What a condition says if that is known, or else what is left of it."""
    if word == "ifndef" and rest.startswith("FW_KERNELS_"):
        return True
    if word != "if":
        rest = f"{'!' if word == 'ifndef' else ''}defined({rest})"
    return _joined("||", rest, known)


def _joined(operator: str, condition: str, known: dict[str, bool]) -> bool | str:
    """The answer to terms with || or && between them, outside of parentheses."""
    depth, begin, terms = 0, 0, []
    for i, c in enumerate(condition):
        depth += (c == "(") - (c == ")")
        if depth == 0 and condition.startswith(operator, i):
            terms.append(condition[begin:i])
            begin = i + 2
    terms = [term.strip() for term in [*terms, condition[begin:]]]
    answers = [_joined("&&", term, known) if operator == "||" else _term(term, known) for term in terms]
    decisive = operator == "||"
    if decisive in answers:
        return decisive
    still_open = [answer for answer in answers if isinstance(answer, str)]
    return f" {operator} ".join(still_open) if still_open else not decisive


def _term(term: str, known: dict[str, bool]) -> bool | str:
    if term.startswith("(") and term.endswith(")"):
        inner = _joined("||", term[1:-1], known)
        return f"({inner})" if isinstance(inner, str) and "||" in inner else inner
    if term.startswith("!"):
        inner = _term(term[1:].strip(), known)
        return not inner if isinstance(inner, bool) else f"!{inner}"
    name = match[1] if (match := re.fullmatch(r"defined\((\w+)\)", term)) else term
    return known.get(name, term)


@dataclass
class Definition:
    """One definition at the top of a namespace, with its comment: a function, a type, a macro, or a whole #if block."""

    text: str
    names: set[str] = field(default_factory=set)
    function: bool = False  # which is reached where it is called
    declarations: dict[str, str] = field(default_factory=dict)  # of a class: members that are defined outside of it

    def reads(self) -> str:
        """What its own text reaches names by."""
        text = self.text
        for declaration in self.declarations.values():
            text = text.replace(declaration, "")
        return text

    def reached_by(self, text: str, name: str) -> bool:
        if not self.function:
            return True
        return re.search(rf"(?<![.\w]){name}\s*[(<]" if "::" not in _head(self) else rf"\b{name}\(", text) is not None


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
            names = _names(body)
            found.append(Definition("\n".join([*comment, body]), names, _is_function(body, names)))
            comment, i = [], end
        i += 1
    return found


def _is_function(body: str, names: set[str]) -> bool:
    head = re.split(r"[{;]", body, maxsplit=1)[0]
    return (
        len(names) == 1
        and not re.match(
            rf"({_TEMPLATE})?(#|struct|class|union|enum|using|constexpr [\w:]+ \w+ =|FW_OPERATOR)",
            body,
        )
        and re.search(rf"\b{next(iter(names))}\(", head) is not None
    )


def members(parts: list[Definition]) -> list[Definition]:
    """The same, with each method that is defined outside of its class under its own name: its declaration goes with
    it."""
    classes = {next(iter(part.names)): part for part in parts if re.search(r"^(class|struct) ", part.text, flags=re.M)}
    for part in parts:
        match = re.search(r"\b(\w+)::(\w+)\(", _head(part))
        if match is None or match[1] not in classes or match[1] == match[2]:
            continue
        owner, part.names, part.function = classes[match[1]], {match[2]}, True
        declaration = re.search(
            rf"(^ +//[^\n]*\n)*^  [^\n/;{{}}]*\b{match[2]}\([^;{{}}]*\)( const)?;\n", owner.text, flags=re.M
        )
        if declaration is not None:
            owner.declarations[match[2]] = declaration[0]
    return parts


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
    head = (
        re.sub(r"template <(?:[^<>{;]|<[^<>]*>)*>\s*(?=\w)", "", body, count=1) if body.startswith("template") else body
    )
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
    open_texts = [*roots, *(parts[number].reads() for number in wanted)]
    while open_texts:
        text = _without_comments(open_texts.pop())
        for name in set(_NAME.findall(text)):
            for number in by_name.get(name, ()):
                if number not in wanted and parts[number].reached_by(text, name):
                    wanted.add(number)
                    open_texts.append(parts[number].reads())
    kept = [part for number, part in enumerate(parts) if number in wanted]
    names = set().union(*(part.names for part in kept))
    for part in kept:
        for name, declaration in part.declarations.items():
            if name not in names:
                part.text = part.text.replace(declaration, "")
    return kept


def without_types(parts: list[Definition], texts: list[str], preludes: list[Definition]) -> list[Definition]:
    """The definitions that kernels of such types can reach: without functions of `double` and of 16-bit types where the
    texts have none, and without templates that those of `float` stand in for."""
    words = set(_NAME.findall(_without_comments("\n".join(texts))))
    absent = {"double", "half", "bfloat16"} - words
    kept = [part for part in parts if not absent & set(_NAME.findall(_head(part)))]
    reached = trimmed(kept, [*texts, *(part.text for part in preludes)])
    used = set(_NAME.findall(_without_comments("\n".join(part.text for part in reached))))
    if used & absent & {"half", "bfloat16"}:  # a conversion between all types
        absent &= {"double"}
        kept = [part for part in parts if not absent & set(_NAME.findall(_head(part)))]
    if "double" not in absent or "i64" in words:
        return kept
    of_float = {name for part in kept if not _is_template(part) and "float" in _head(part) for name in part.names}
    return [part for part in kept if not (_is_template(part) and part.names and part.names <= of_float)]


def _is_template(part: Definition) -> bool:
    return "(" in _head(part) and _without_comments(part.text).lstrip().startswith("template <class T>")


def _head(part: Definition) -> str:
    """What stands in front of a function's body, or names a type."""
    code = _without_comments(part.text).strip()
    return "" if code.startswith("#") else re.split(r"[{;]", code, maxsplit=1)[0]


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


def in_namespace(name: str, parts: list[Definition]) -> str:
    """The definitions, with an empty line where one is longer than a line."""
    text = ""
    for part in parts:
        long = "\n" in part.text
        text += ("\n" if long and text and not text.endswith("\n\n") else "") + part.text + ("\n\n" if long else "\n")
    return f"namespace {name} {{\n\n{text.strip()}\n\n}}  // namespace {name}\n"
