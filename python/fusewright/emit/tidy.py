"""A kernel's text as one would keep it: what the generator writes for all kernels and this one does not use is gone.

Machine code stays the same. The rules know how the generator writes (src/codegen/cuda_*.cpp)."""

from __future__ import annotations

import difflib
import re

_NAME = re.compile(r"[A-Za-z_]\w*")
_WIDTH = 116
_INFIX = {"add": "+", "sub": "-", "mul": "*", "gt": ">", "lt": "<", "ge": ">=", "le": "<="}


def tidy(text: str) -> str:
    """The text of a CUDA kernel."""
    text = text.replace('extern "C" ', "").replace("[[maybe_unused]] ", "")
    text = re.sub(r"^ *\(void\)[^;{}]*;\n", "", text, flags=re.M)
    text = re.sub(r"^ *static_assert\(.*, \"the launcher counts otherwise\"\);\n", "", text, flags=re.M)
    text = _without_clusters(text)
    text = _without_zeros(text)
    text = _without_conversions(text)
    text = _without_empty_sums(text)
    text = _without_empty_members(text)
    declared = re.findall(r"^ +(?:const )?(?:fw::\w+|int) ([^;=]*)[;=]", text, flags=re.M)
    integers = {name for names in declared for name in _NAME.findall(names)} - {"i", "V"}
    before = ""
    while text != before:
        before = text
        text = "".join(_tidy_definition(part, integers) for part in split(text))
        text = _without_empty_functions(text)
        text = _without_dead_members(text)
        text = _without_dead_parameters(text)
    text = _joined_members(text)
    return re.sub(r"\n{3,}", "\n\n", text)


def split(text: str) -> list[str]:
    """The definitions of a text, each with the empty lines behind it; what stands under a condition is one of them."""
    parts, depth, conditions, begin = [], 0, 0, 0
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        code = line.split("//")[0].rstrip()
        if depth == 0 and code.startswith(("#if", "#endif")):
            conditions += 1 if code.startswith("#if") else -1
        elif code == "namespace {":
            continue
        else:
            depth += code.count("{") - code.count("}")
        namespace_ends = code == "}" and depth < 0
        depth = max(depth, 0)
        ends = code.endswith((";", "}")) and not line.startswith(" ") or code.startswith("#endif")
        if depth == 0 and conditions == 0 and (ends or namespace_ends):
            parts.append("".join(lines[begin : number + 1]))
            begin = number + 1
        elif not code and depth == 0 and conditions == 0 and parts and begin == number:
            parts[-1] += line
            begin = number + 1
    return [part for part in (*parts, "".join(lines[begin:])) if part]


def merged(condition: str, texts: list[str]) -> str:
    """Two texts of a kernel as one: what only one of them has stands under the condition, or in its other branch."""
    first, second = map(split, texts)
    plain = [[part.rstrip() for part in parts] for parts in (first, second)]
    text = ""
    for kind, a0, a1, b0, b1 in difflib.SequenceMatcher(None, *plain, autojunk=False).get_opcodes():
        if kind == "equal":
            text += "".join(first[a0:a1])
            continue
        own, other = "".join(first[a0:a1]).rstrip("\n"), "".join(second[b0:b1]).rstrip("\n")
        begin = f"#if {condition}\n{own}\n" if own else f"#if !({condition})\n"
        text += begin + (("#else\n" if own else "") + other + "\n" if other else "") + "#endif\n"
    return text


def _without_clusters(text: str) -> str:
    """A file launches no clusters of blocks."""
    text = text.replace(", FW_CLUSTER ? a.cluster_bits : 0)", ")")
    text = re.sub(r"^  if \(a\.cluster_bits != 0\) \{\n.*?^  \}\n", "", text, flags=re.M | re.S)
    text = re.sub(r"^ *const (fw::u32 rank|fw::Mailbox<.*> mailbox)\b.*;\n", "", text, flags=re.M)
    text = text.replace("mailbox.owner() == rank && ", "").replace(
        "(fw::block_index() >> team.cluster_bits)", "fw::block_index()"
    )
    text = text.replace("((block.quotient << a.cluster_bits) + static_cast<index>(rank))", "block.quotient")
    text = text.replace(" >> a.cluster_bits", "")
    return re.sub(r"^ *fw::(begin_cluster<[\w, <>]*>\(.*|join_cluster\(team\.cluster_bits)\);\n", "", text, flags=re.M)


def _without_zeros(text: str) -> str:
    text = re.sub(r"(?<![\w.)\]] )(?<![\w.])0 \+ (?=[\w(])", "", text)
    text = re.sub(r" \+ \(0\) \* static_cast<index>\(a\.parts\)", "", text)
    text = re.sub(r"\((at\.\w+|\w+) \+ 0\)", r"\1", text)
    text = re.sub(r" \+ 0 \* static_cast<index>\([^()]*\)", "", text)
    text = re.sub(r"\((turn|depth)\) \*", r"\1 *", text)
    for zero in set(re.findall(r"^  row\.(o\d+) = 0;\n", text, flags=re.M)):  # an operand without such axes
        if re.search(rf"\.{zero} (\+=|= (?!0;))", text):
            continue
        text = re.sub(rf"^  row\.{zero} = 0;\n", "", text, flags=re.M)
        text = re.sub(rf"\brow\.{zero} \+ ", "", text)
        text = re.sub(rf"\brow\.{zero}\b", "0", text)
    return text


def _without_conversions(text: str) -> str:
    """Conversions to the type that something has already."""
    members: dict[str, set[str]] = {}
    for kind, name in re.findall(
        r"^ +(?:const )?(float|fw::i64|bool|int) (\w+)(?:\[\w+\])?(?: =.*)?;$", text, flags=re.M
    ):
        members.setdefault(name, set()).add(kind)

    def converted(match: re.Match) -> str:
        kind, inner = match[1], match[2]
        name = re.sub(r"\[[^\]]*\]$", "", inner).split(".")[-1]
        return inner if members.get(name) == {kind} else match[0]

    text = re.sub(r"fw::convert<([\w:]+)>\(([\w.]+(?:\[\w+\])?)\)", converted, text)
    text = re.sub(r"fw::as_stored<float, float>\((\w+)\)", r"\1", text)

    pattern = re.compile(r"fw::convert<([\w:]+)>\((?=(?:fw::load\()?static_cast<const \1\*>)")
    while match := pattern.search(text):
        end = _closing(text, match.end() - 1)
        text = text[: match.start()] + text[match.end() : end] + text[end + 1 :]
    return text


def _closing(text: str, begin: int) -> int:
    """Where the parenthesis that opens at `begin` closes."""
    depth = 0
    for i in range(begin, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    raise ValueError("no closing parenthesis")


def _without_empty_sums(text: str) -> str:
    """A sweep that adds up nothing has no sums."""
    pattern = re.compile(
        r"(?:template <int W>\n)?struct (Sums(?:Of)?(\d+)|Total) \{\n  FW_FN void clear\(\) \{\n  \}\n.*?^\};\n",
        re.M | re.S,
    )
    for match in list(pattern.finditer(text)):
        name, number = match[1], match[2]
        if name == "Total":
            continue
        text = text.replace(match[0], "")
        text = re.sub(rf"^using Sums{number} = .*;\n\n?", "", text, flags=re.M)
        text = re.sub(rf", (?:const )?Sums(?:Of)?{number}(?:<1>)?& sums\b", "", text)
        text = re.sub(rf"^ *Sums{number} sums{number};\n *sums{number}\.clear\(\);\n", "", text, flags=re.M)
        text = re.sub(rf"^ *fw::reduce\(\w+, (sums|own){number}\);\n", "", text, flags=re.M)
        text = re.sub(rf"^ *SumsOf{number}<1> own{number} = .*;\n", "", text, flags=re.M)
        text = re.sub(rf", own{number}\b(?=[,)])", "", text)
        text = re.sub(rf", sums{number}\b(?=[,)])", "", text)
    return text


def _without_empty_members(text: str) -> str:
    """Of the structures that a thread holds for a row, those that have a member."""
    for kind, names in (("Fixed", "f|fixed"), ("Kept", "kept")):
        if f"struct {kind} {{\n}};\n" not in text:
            continue
        text = text.replace(f"struct {kind} {{\n}};\n", "")
        text = re.sub(rf", (?:const )?{kind}& (?:{names})\b", "", text)
        text = re.sub(rf"^ *{kind} \w+(?:\[\w+\])?;\n", "", text, flags=re.M)
        text = re.sub(r", f\[n\] = next_fixed\d+\[n\]" if kind == "Fixed" else "(?!)", "", text)
        arguments = r"f|f\[n\]|Fixed\(\)|next_fixed\d+\[n\]" if kind == "Fixed" else r"kept|kept\[item\]"
        text = re.sub(rf", (?:{arguments})(?=[,)])", "", text)
    return text


def _without_dead_parameters(text: str) -> str:
    """What a function does not use, its callers do not hand it."""
    for match in list(re.finditer(r"^(?:template <[^\n]*>\n)?FW_FN [\w:]+ (\w+)\(", text, flags=re.M)):
        name = match[1]
        heads = list(re.finditer(rf"^(template <[^\n]*>\n)?FW_FN [\w:]+ {name}\(", text, flags=re.M))
        if len(heads) != 1:
            continue
        begin = heads[0].end() - 1
        end = _closing(text, begin)
        parameters = _arguments(text[begin + 1 : end])
        body = text[end : text.index("\n}\n", end)]
        words = set(_NAME.findall(re.sub(r"//[^\n]*", "", body)))
        template = set(_NAME.findall(heads[0][1] or "")) - {"int"}
        dead = [
            i
            for i, parameter in enumerate(parameters)
            if _NAME.findall(parameter)[-1] not in words and not template & set(_NAME.findall(parameter)[:-1])
        ]
        if dead and len(dead) < len(parameters):
            text = _with_fewer(text, name, len(parameters), dead)
    return text


def _with_fewer(text: str, name: str, count: int, dead: list[int]) -> str:
    at = 0
    while match := re.compile(rf"\b{name}\(").search(text, at):
        end = _closing(text, match.end() - 1)
        arguments = _arguments(text[match.end() : end])
        at = match.end()
        if len(arguments) == count and text[match.start() - 1] not in ":.":
            text = text[:at] + ", ".join(a for i, a in enumerate(arguments) if i not in dead) + text[end:]
    return text


def _tidy_definition(text: str, integers: set[str]) -> str:
    """Locals that are not used, loops without a body, steps that are used once."""
    for _ in range(3):
        text = _without_locals(text)
        text = re.sub(r"^(?:#pragma unroll\n)? *for \([^{}\n]*\) \{\n *\}\n", "", text, flags=re.M)
    text = _as_formulas(text, integers)
    return re.sub(r"^( *for \(int i = 0; [^{}\n]*\)) \{\n +([^\n{}]*;)\n *\}\n", _one_line, text, flags=re.M)


def _one_line(match: re.Match) -> str:
    line = f"{match[1]} {match[2]}\n"
    return line if len(line) <= _WIDTH else match[0]


def _without_locals(text: str) -> str:
    lines = text.splitlines(keepends=True)
    kept = []
    for number, line in enumerate(lines):
        match = re.match(r" +(?:(?:constexpr|const) [\w:]+|char\* const) (\w+) = [^;,]*;$", line.rstrip())
        if match and not _is_used(match[1], lines[number + 1 :], len(line) - len(line.lstrip())):
            continue
        kept.append(line)
    return "".join(kept)


def _is_used(name: str, lines: list[str], indent: int) -> bool:
    """Whether the rest of the block has the name, beside as a loop's own."""
    word, own = re.compile(rf"\b{name}\b"), re.compile(rf"for \(\w+ {name} = ")
    hidden = -1  # the indentation of a loop over this name
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if line.strip() and not line.startswith("#") and depth < indent:
            return False
        if hidden >= 0:
            if depth <= hidden and line.strip() and not line.startswith("#"):
                hidden = -1
                if line.strip() == "}":
                    continue
            else:
                continue
        if own.search(line):
            if line.rstrip().endswith("{"):
                hidden = depth
            continue
        if word.search(line):
            return True
    return False


def _as_formulas(text: str, integers: set[str]) -> str:
    """Operations as C++ writes them, and a step that one other takes as part of it. Those of integers stay calls: they
    wrap around. What reads memory stays where it is."""
    lines = text.splitlines(keepends=True)
    number = 0
    while number < len(lines):
        match = re.match(r"( +)const (?:float|bool) (v\d+) = (.*);$", lines[number].rstrip())
        if match is None:
            number += 1
            continue
        value = _infix(match[3], integers)
        lines[number] = (
            f"{match[1]}const {'bool' if 'const bool' in lines[number] else 'float'} {match[2]} = {value};\n"
        )
        word = re.compile(rf"\b{match[2]}\b")
        users = [k for k in range(number + 1, len(lines)) if word.search(lines[k])]
        if len(users) == 1 and len(word.findall(lines[users[0]])) == 1:
            user = lines[users[0]]
            inner = value if re.fullmatch(r"[\w.:]+(\[\w+\])?|[\w:]+\([^()]*\)", value) else f"({value})"
            joined = word.sub(inner.replace("\\", r"\\"), user)
            read = re.findall(r"([\w.]+)\[", value)
            if "pointers" in value or any(
                re.match(rf" *{re.escape(array)}\[\w+\] \+?= ", line)
                for array in read
                for line in lines[number + 1 : users[0]]
            ):
                number += 1
                continue
            same_block = len(user) - len(user.lstrip()) == len(match[1])
            if same_block and not user.lstrip().startswith("if (") and len(joined) <= _WIDTH:
                lines[users[0]] = joined
                del lines[number]
                continue
        number += 1
    return "".join(_bare(_infix_line(line, integers)) for line in lines)


def _bare(line: str) -> str:
    """Without parentheses around what is an argument, or a value, as a whole."""
    at = 0
    while match := re.compile(r"(?<=[(\s])\(").search(line, at):
        at = match.start() + 1
        end = _closing(line, match.start()) if line.count("(") == line.count(")") else -1
        before, behind = line[: match.start()], line[end + 1 : end + 2]
        is_argument = re.search(r"[\w>]\($", before) or before.endswith(", ") and behind in ",)"
        if re.search(r"\b(if|for|while|switch) \($", before) or end < 0:
            continue
        inner = line[match.start() + 1 : end]
        if (
            (before.endswith("(") and line[end + 1 : end + 2] == ")" and _closing(line, match.start() - 1) == end + 1)
            or (is_argument and behind in ",)" and behind)
            or (before.endswith(" = ") and behind == ";")
        ):
            line = before + inner + line[end + 1 :]
            at = match.start()
    return line


def _infix_line(line: str, integers: set[str]) -> str:
    match = re.match(
        r"( +(?:const float \w+|const bool \w+|row\.\w+|out\d+\[i\]|sums\.\w+\[i\]|\w+\[i\]) \+?= )(.*);$",
        line.rstrip(),
    )
    return f"{match[1]}{_infix(match[2], integers)};\n" if match else line


def _infix(value: str, integers: set[str]) -> str:
    """`fw::add(a, b)` as `a + b`, also within other terms."""
    if integers & set(_NAME.findall(value)):
        return value
    while match := re.search(r"fw::(add|sub|mul|gt|lt|ge|le|select)\(", value):
        end = _closing(value, match.end() - 1)
        terms = _arguments(value[match.end() : end])
        terms = [
            term if re.fullmatch(r"-?[\w.:]+(\[\w+\])?|[\w:]+\(.*\)|\(.*\)", term) else f"({term})" for term in terms
        ]
        whole = match.start() == 0 and end == len(value) - 1
        if match[1] == "select":
            text = f"{terms[0]} ? {terms[1]} : {terms[2]}"
        else:
            text = f"{terms[0]} {_INFIX[match[1]]} {terms[1]}"
        value = value[: match.start()] + (text if whole else f"({text})") + value[end + 1 :]
    return value


def _arguments(text: str) -> list[str]:
    found, depth, begin = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            found.append(text[begin:i].strip())
            begin = i + 1
    return [*found, text[begin:].strip()]


def _without_empty_functions(text: str) -> str:
    pattern = re.compile(r"^FW_FN void (\w+)\([^{}]*\) \{\n\}\n+", re.M)
    while match := pattern.search(text):
        text = text.replace(match[0], "", 1)
        text = re.sub(rf"^( *)(?:if \([^\n;{{}}]*\) )?{match[1]}\([^\n]*\);\n", "", text, flags=re.M)
    return text


def _without_dead_members(text: str) -> str:
    """Members of a row that nobody reads, and what is read once, where it is computed."""
    for name in re.findall(r"^  (?:float|index|fw::i64|bool) ((?:own|v|o|c)\d+);$", text, flags=re.M):
        uses = re.findall(rf"\b\w+\.{name}\b", text)
        if not uses:
            text = re.sub(rf"^  (?:float|index|fw::i64|bool) {name};\n", "", text, count=1, flags=re.M)
            continue
        if len(uses) != 2 or set(uses) != {f"row.{name}"}:
            continue
        match = re.search(
            rf"^  row\.{name} = (.*);\n((?:  [^\n]*\n)*?)(  row\.\w+ = [^\n]*)\brow\.{name}\b(.*;\n)", text, flags=re.M
        )
        if match is None or "store" in match[1] or "pointers" in match[1]:
            continue
        value = match[1] if re.fullmatch(r"[\w.:]+|[\w:]+\([^()]*\)", match[1]) else f"({match[1]})"
        line = match[3] + value + match[4]
        if len(line) > _WIDTH:
            continue
        text = text[: match.start()] + match[2] + line + text[match.end() :]
        text = re.sub(rf"^  (?:float|index|fw::i64|bool) {name};\n", "", text, count=1, flags=re.M)
    return text


def _joined_members(text: str) -> str:
    """Neighbours of one type in one line."""

    def join(match: re.Match) -> str:
        kind = match[1]
        names = re.findall(r"(\w+(?:\[\w+\])?);", match[0])
        rows, row = [], f"  {kind} {names[0]}"
        for name in names[1:]:
            if len(row) + len(name) + 3 > _WIDTH:
                rows.append(row + ";\n")
                row = f"  {kind} {name}"
            else:
                row += f", {name}"
        return "".join([*rows, row + ";\n"])

    return re.sub(
        r"^  (float|index|fw::i64|fw::u32) \w+(?:\[\w+\])?;\n(?:  \1 \w+(?:\[\w+\])?;\n)+", join, text, flags=re.M
    )
