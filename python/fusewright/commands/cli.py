"""The command `fusewright`.

Exit status: 0 right and done, 1 a wrong result, 2 bad usage or input. Results go to stdout, progress and errors to
stderr. Nothing is imported here that takes time: each command imports what it needs (process.py is around all of it).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from ..errors import BuildError, InputError
from . import process

RIGHT, WRONG, BAD_INPUT = 0, 1, 2

MODEL = "a file with Model, get_inputs and get_init_inputs, or package.module:Class"


def main(arguments: list[str] | None = None) -> int:
    options = _parsed(arguments)
    try:
        return options.function(options)
    except (BuildError, InputError) as error:
        print(f"fusewright {options.command}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        process.answer(f"fusewright {options.command}")
        return process.INTERRUPTED


# ---- what can be said --------------------------------------------------------------------------------------


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The options; for an unknown one argparse would show the usage of all commands, and not of the one it is for, or
    miss the command alone."""
    parser, commands = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands.get(options.command, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is None:
        parser.error("the following arguments are required: COMMAND")
    return options


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and the one of each command."""
    parser = argparse.ArgumentParser(
        prog="fusewright",
        description="A fusion compiler for PyTorch.",
        epilog="`fusewright COMMAND --help` shows examples. Exit status: 0 right and done, 1 a wrong result, "
        "2 bad usage or input.",
    )
    parser.add_argument("--version", action=_Version, help="the version, and nothing else")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, function: Callable[[argparse.Namespace], int], about: str, *examples: str):
        added = commands.add_parser(
            name,
            help=about,
            description=about[0].upper() + about[1:] + ".",
            epilog="examples:\n" + "".join(f"  fusewright {example}\n" for example in examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(function=function)
        added.add_argument("--json", action="store_true", help="the result as JSON on stdout")
        return added

    run = command(
        "run",
        _run,
        "take models through everything: explain, time, check, certify, train",
        "run",
        "run -o report.html",
        "run model.py other.py --seconds 1 --no-compile",
        "run model.py --device cuda --json > results.json",
    )
    files = "files with Model, get_inputs and get_init_inputs; without any, the showcase"
    run.add_argument("models", nargs="*", type=Path, help=files)
    _add_place(run)
    run.add_argument("--seconds", type=_positive_number, default=2.0, help="time spent on each timing; 2")
    run.add_argument("-o", "--output", type=Path, metavar="FILE", help="write one page about all of them, as HTML")
    run.add_argument("--no-explain", action="store_true", help="do not print every model's kernels")
    run.add_argument("--no-compile", action="store_true", help="do not time torch.compile")

    explain = command(
        "explain",
        _explain,
        "say what is fused in a model, what is not, and why",
        "explain model.py",
        "explain model.py --inference --device cuda",
        "explain package.module:Block --inputs small_inputs --json",
    )
    _add_model(explain)
    _add_phase(explain)
    _add_place(explain)

    certify = command(
        "certify",
        _certify,
        "hold a model against float64: output, every gradient and every buffer, over sizes, layouts, dtypes and modes",
        "certify model.py",
        "certify model.py -o certificate.json",
        "certify model_new.py --class ModelNew --reference model.py",
        "certify model.py --seeds 10 --dtypes float32 --device cuda --json",
    )
    _add_model(certify)
    certify.add_argument("--reference", metavar="MODEL", help="compare with this model, and do not optimise the first")
    certify.add_argument("--reference-class", default="Model", help="its class; Model")
    certify.add_argument("--seeds", type=_positive, default=3, help="fresh weights and inputs in every mode; 3")
    certify.add_argument(
        "--dtypes", nargs="+", choices=("float32", "bfloat16", "float16"), help="besides the model's own; all three"
    )
    certify.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the certificate, as JSON")
    _add_place(certify)

    emit = command(
        "emit",
        _emit,
        "write one Python file with ModelNew: the model with fused kernels, which needs PyTorch and nothing else",
        "emit model.py",
        "emit model.py -o model_new.py --arch 90a",
        "emit model.py --backend cpu --inference",
        "emit package.module:Block --inputs small_inputs -o - --json",
    )
    _add_model(emit)
    emit.add_argument(
        "-o", "--output", metavar="FILE", help="the file to write; MODEL_new.py in the current directory; - is stdout"
    )
    emit.add_argument(
        "--backend",
        choices=("cuda", "cpu"),
        default="cuda",
        help="what the kernels are for; cuda (no GPU is needed here)",
    )
    emit.add_argument(
        "--arch", nargs="+", type=_architecture, default=[], metavar="SM",
        help="architectures to compile for, like 80 or 90a; else those of the machine where the file runs",
    )  # fmt: skip
    _add_phase(emit)
    emit.add_argument(
        "--scale", choices=("auto", "small", "full"), default="auto", help="for files whose functions take a `scale`"
    )
    emit.add_argument("--seed", type=int, default=0)
    emit.add_argument(
        "--no-measure",
        action="store_true",
        help="do not time the file against the model (else on a GPU, if there is one)",
    )
    bench = command(
        "bench",
        _bench,
        "time a model beside eager and torch.compile, with memory, first calls and the hardware's floor",
        "bench model.py",
        "bench model.py -o results.csv --seconds 10",
        "bench model.py --modes forward --candidates eager fusewright --device cuda --json",
    )
    _add_model(bench)
    bench.add_argument("--seconds", type=_positive_number, default=3.0, help="time spent on each mode; 3")
    bench.add_argument(
        "--modes", nargs="+", choices=("forward", "step"), help="forward without gradients, training step"
    )
    names = ("eager", "torch.compile", "max-autotune", "fusewright")
    bench.add_argument("--candidates", nargs="+", choices=names, help="what is timed; all four")
    bench.add_argument("--no-first-calls", action="store_true", help="no processes that compile from empty caches")
    bench.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the numbers: FILE.json or FILE.csv")
    _add_place(bench)

    report = command(
        "report",
        _report,
        "write one page about a model: graph before and after, kernels, roofline, benchmark, certificate, source",
        "report model.py -o report.html",
        "report model.py -o report.html --device cuda --seconds 5",
    )
    _add_model(report)
    report.add_argument("-o", "--output", type=Path, metavar="FILE", required=True, help="the page, as HTML")
    report.add_argument("--seconds", type=_positive_number, default=2.0, help="time spent on each timing; 2")
    report.add_argument("--no-compile", action="store_true", help="do not time torch.compile")
    _add_place(report)

    command(
        "doctor",
        _doctor,
        "say what was found on this machine and what is missing, and run a small self-test",
        "doctor",
        "doctor --json",
    )

    cache = command(
        "cache",
        _cache,
        "show, check or empty the kernels that are kept on disk",
        "cache info",
        "cache verify",
        "cache clear",
    )
    cache.add_argument(
        "action",
        choices=("info", "verify", "clear"),
        help="where it is and what it holds; check every entry; remove all",
    )
    return parser, commands.choices


class _Version(argparse.Action):
    """argparse's own would look the version up for every command."""

    def __init__(self, **options):
        super().__init__(nargs=0, **options)

    def __call__(self, parser, *_):
        from .. import __version__

        print(f"fusewright {__version__}")
        parser.exit()


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help=MODEL)
    parser.add_argument("--class", dest="class_name", default="Model", help="the class in the file; Model")
    parser.add_argument("--inputs", default="get_inputs", help="the function that draws inputs; get_inputs")


def _add_phase(parser: argparse.ArgumentParser) -> None:
    phase = parser.add_mutually_exclusive_group()
    phase.add_argument("--training", action="store_true", default=True, help="forward and backward (the default)")
    phase.add_argument("--inference", dest="training", action="store_false", help="evaluation without gradients")


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda or cuda:N")
    parser.add_argument(
        "--scale", choices=("auto", "small", "full"), default="auto", help="for files whose functions take a `scale`"
    )
    parser.add_argument("--seed", type=int, default=0)


def _architecture(text: str) -> str:
    found = re.fullmatch(r"(?:sm_)?(\d{2,3}a?)", text)
    if found is None or int(found[1].rstrip("a")) < 50:
        raise argparse.ArgumentTypeError(f"{text} is no architecture like 80, 90a or sm_90a")
    return found[1]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _positive_number(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return number


# ---- what is done ------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from . import tour

    return tour.main(
        options.models,
        scale=options.scale,
        device=options.device,
        seed=options.seed,
        seconds=options.seconds,
        with_compile=not options.no_compile,
        explain=not options.no_explain,
        as_json=options.json,
        output=options.output,
    )


def _explain(options: argparse.Namespace) -> int:
    import torch

    from .. import models
    from ..console import progress
    from ..explain import explain

    device, scale = _place(options)
    file = models.load(options.model, options.class_name, options.inputs)
    with progress(3) as step:
        step(f"{file.name}: build")
        model = file.build(scale, options.seed, device).train(options.training)
        inputs = file.inputs(scale, device)
        step(f"{file.name}: run in eager")
        file.output(model, inputs)
        step(f"{file.name}: explain")
        if options.training:
            inputs = [x.requires_grad_() if models.is_float_tensor(x) else x for x in inputs]
        with torch.set_grad_enabled(options.training):
            explanation = explain(model, *inputs)
    print(json.dumps(asdict(explanation), indent=2, default=str) if options.json else explanation)
    return RIGHT


def _emit(options: argparse.Namespace) -> int:
    from .. import models
    from ..console import output_file, progress
    from ..emit import emit

    file = models.load(options.model, options.class_name, options.inputs)
    scale = models.scale_for_this_machine() if options.scale == "auto" else options.scale
    to_stdout = options.output == "-"
    path = None if to_stdout else Path(options.output or f"{file.path.stem}_new.py")
    if path is not None and path.exists() and path.samefile(file.path):
        raise InputError(f"{path} is the model's own file")
    device = models.choose_device()
    measure = options.backend == device.type == "cuda" and not options.no_measure
    with output_file(path) as written:
        with progress(1) as step:
            step(f"{file.name}: capture and write" + (", build and measure" if measure else ""))
            emitted = emit(
                file,
                backend=options.backend,
                training=options.training,
                arch=tuple(options.arch),
                scale=scale,
                seed=options.seed,
                device=device if measure else None,
            )
        if written:
            written.write(emitted.text)
    if options.json:
        result = {**asdict(emitted), "file": None if path is None else str(path)}
        if path is not None:
            del result["text"]
        print(json.dumps(result, indent=2))
    elif to_stdout:
        print(emitted.text, end="")
    else:
        count = f"{len(emitted.kernels)} kernel" + ("" if len(emitted.kernels) == 1 else "s")
        print(f"{path}: ModelNew with {count} for {emitted.backend}, {len(emitted.text.splitlines())} lines")
    return RIGHT


def _certify(options: argparse.Namespace) -> int:
    import torch

    from .. import models
    from ..console import output_file, progress
    from ..judge.certify import DTYPES, certify

    device, scale = _place(options)
    file = source = models.load(options.model, options.class_name, options.inputs)
    reference = None
    if options.reference is not None:
        # The reference says what the inputs are: the model that is doubted could choose easy ones.
        other = models.load(options.reference, options.reference_class)
        reference = other.build(scale, options.seed, device)
        file = replace(file, get_init_inputs=file.get_init_inputs or other.get_init_inputs)
        source = other if other.get_inputs and options.inputs == "get_inputs" else file
    model = file.build(scale, options.seed, device)

    draw = source.draw(scale, device)
    inputs = draw(options.seed)
    plain = model if reference is None else reference
    source.output(plain.eval(), inputs)
    dtypes = [getattr(torch, name) for name in options.dtypes] if options.dtypes else DTYPES
    with output_file(options.output) as written:
        with progress() as step:
            certificate = certify(
                model,
                reference=reference,
                draw=draw,
                seed=options.seed,
                seeds=options.seeds,
                dtypes=dtypes,
                progress=lambda text: step(f"{file.name}: {text}"),
            )
        if written:
            written.write(certificate.to_json())
    print(certificate.to_json() if options.json else certificate, end="" if options.json else "\n")
    return RIGHT if certificate.ok else WRONG


def _bench(options: argparse.Namespace) -> int:
    from .. import models
    from ..benchmark.benchmark import MODES, bench, print_tables
    from ..benchmark.candidates import MAKERS
    from ..console import Console, output_file, progress

    if options.output and options.output.suffix not in (".json", ".csv"):
        raise InputError(f"cannot write {options.output}: numbers are written as .json or .csv")
    device, scale = _place(options)
    file = models.load(options.model, options.class_name, options.inputs)
    model = file.build(scale, options.seed, device)
    draw = file.draw(scale, device)
    file.output(model, draw(options.seed))
    with output_file(options.output) as written:
        with progress() as step:
            result = bench(
                model,
                draw=draw,
                modes=options.modes or tuple(MODES),
                candidates=options.candidates or tuple(MAKERS),
                seconds=options.seconds,
                seed=options.seed,
                file=file,
                scale=scale,
                first_call_of=[] if options.no_first_calls else None,
                progress=lambda text: step(f"{file.name}: {text}"),
            )
        if written:
            written.write(result.to_csv() if options.output.suffix == ".csv" else result.to_json())
    if options.json:
        print(result.to_json(), end="")
    else:
        print_tables(result, Console())
    return RIGHT if result.ok else WRONG


def _report(options: argparse.Namespace) -> int:
    from .. import models
    from ..console import progress
    from ..pages.report import report
    from ..pages.study import CANDIDATES

    device, scale = _place(options)
    file = models.load(options.model, options.class_name, options.inputs)
    model = file.build(scale, options.seed, device)
    draw = file.draw(scale, device)
    file.output(model, draw(options.seed))
    with progress() as step:
        found = report(
            model,
            path=options.output,
            draw=draw,
            candidates=[name for name in CANDIDATES if name != "torch.compile" or not options.no_compile],
            seconds=options.seconds,
            seed=options.seed,
            file=file,
            scale=scale,
            progress=lambda text: step(f"{file.name}: {text}"),
        )
    if options.json:
        print(json.dumps({"report": str(options.output), **found.to_dict()}, indent=2))
    else:
        print(f"{found.name}: {'right' if found.ok else 'WRONG'}; the report is in {options.output}")
        for problem in found.problems:
            print(f"WRONG: {problem}")
    return RIGHT if found.ok else WRONG


def _place(options: argparse.Namespace):
    """The device and the scale that the options name."""
    from .. import models

    device = models.choose_device(options.device)
    return device, models.scale_for_this_machine(device) if options.scale == "auto" else options.scale


def _doctor(options: argparse.Namespace) -> int:
    from .doctor import diagnose

    diagnosis = diagnose()
    print(json.dumps(diagnosis.to_dict(), indent=2) if options.json else diagnosis)
    return RIGHT if diagnosis.ok else WRONG


def _cache(options: argparse.Namespace) -> int:
    from ..units import show_bytes
    from . import cache

    status = RIGHT
    if options.action == "info":
        found = cache.info()
        result = asdict(found)
        text = f"{found.root or 'no directory'}: " + (
            f"{found.entries} entries, {show_bytes(found.bytes)}" if found.usable else f"not usable: {found.reason}"
        )
    elif options.action == "clear":
        removed = cache.clear()
        result, text = {"root": cache.info().root, "removed": removed}, f"{removed} entries removed"
    else:
        checked = cache.verify()
        result = asdict(checked)
        text = "".join(f"{name} {problem}\n" for name, problem in checked.bad)
        text += f"{checked.entries - len(checked.bad)} of {checked.entries} entries are whole"
        text += "; the others are compiled again when they are needed" if checked.bad else ""
        status = WRONG if checked.bad else RIGHT
    print(json.dumps(result, indent=2) if options.json else text)
    return status


if __name__ == "__main__":
    sys.exit(main())
