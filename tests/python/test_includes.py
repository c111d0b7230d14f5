"""scripts/includes.py: folders of src/ include each other as the table in docs/layout.md says."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]

spec = importlib.util.spec_from_file_location("includes", ROOT / "scripts" / "includes.py")
includes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(includes)


def test_the_sources_keep_to_the_table(capsys):
    assert includes.main() == 0, capsys.readouterr().out


def test_every_row_is_a_folder():
    table = includes.table((ROOT / "docs" / "layout.md").read_text(encoding="utf-8"))
    assert table["codegen/walk"] == {"codegen"}
    missing = [folder for folder in table if not (ROOT / "src" / folder).is_dir()]
    assert not missing


def test_complaints():
    allowed = {"ir": {"ops"}, "torch": {"ir"}}
    assert includes.complaints(allowed, "ir", '#include "ops/op.h"\n#include "ir/ir.h"\n#include <vector>\n') == []
    (complaint,) = includes.complaints(allowed, "ir", '#include "runtime/posix.h"\n')
    assert "src/ir may not include runtime" in complaint
    (complaint,) = includes.complaints(allowed, "ir", "#include <ATen/ATen.h>\n")
    assert "only emit/file and torch may" in complaint
    assert includes.complaints(allowed, "torch", '#include <ATen/ATen.h>\n#include "ir/ir.h"\n') == []
    (complaint,) = includes.complaints(allowed, "new", "")
    assert "src/new has no row" in complaint
