"""The rules of the house, read off the import statements: arrows run one way."""

import ast
import graphlib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOUNDATION = (
    "catalog",
    "checkpoints",
    "config",
    "errors",
    "executor",
    "filesystem",
    "io",
    "progress",
    "resources",
    "shards",
    "trackers",
    "tracking",
    "training_state",
)
PARTS = ("data", "encoder", "rewriter", "evaluation", "models", "retrieval", "server")
ENTRANCES = ("cohyde.retriever",)
"""What is to programs what the command line is to people."""
WORKERS_ONLY = {
    "torch",
    "transformers",
    "sentence_transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "ray",
    "vllm",
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


MODULES = {module_name(path): path for folder in ("cohyde", "stages") for path in sorted((ROOT / folder).rglob("*.py"))}
COMMAND_LINE = ["cohyde.__main__", "cohyde.cli", *(module for module in MODULES if module.startswith("cohyde.cli_"))]


def imported_by(node: ast.stmt, module: str) -> list[str]:
    """What one import statement names: modules of ours exactly, others by what stands after ``import`` or ``from``."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert not node.level, f"{module}:{node.lineno}: imports are absolute"
    submodules = [f"{node.module}.{alias.name}" for alias in node.names]
    inside = [name for name in submodules if name in MODULES]
    return inside if len(inside) == len(submodules) else [str(node.module), *inside]


def imports_of(module: str, *, at_top: bool = False) -> set[str]:
    """All that a module imports, anywhere in it, or only what happens when it is imported itself."""
    tree = tree_of(MODULES[module])
    nodes = statements_at_top(tree) if at_top else [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return {name for node in nodes for name in imported_by(node, module)}


def statements_at_top(tree: ast.Module) -> list[ast.stmt]:
    """Statements that run on import: those of the module and of its ``if`` and ``try`` blocks, not of TYPE_CHECKING."""
    found: list[ast.stmt] = []
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        found.append(node)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
            waiting += [line for handler in getattr(node, "handlers", []) for line in handler.body]
    return found


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def roots(names: set[str]) -> set[str]:
    """The top packages that names belong to."""
    return {name.partition(".")[0] for name in names}


def modules_of(*packages: str) -> list[str]:
    return [module for module in MODULES if within(module, *packages)]


def forbidden(modules: list[str], *packages: str) -> list[str]:
    return [f"{m} imports {name}" for m in modules for name in sorted(imports_of(m)) if within(name, *packages)]


def test_only_the_command_line_and_the_entrance_for_programs_import_stages():
    library = [m for m in modules_of("cohyde") if m not in (*COMMAND_LINE, *ENTRANCES)]
    assert len(library) > 20
    assert forbidden(library, "stages") == []


def test_the_dag_knows_neither_encoders_nor_rewriters_nor_stages():
    dag = modules_of("cohyde.dag")
    assert dag
    assert forbidden(dag, "stages", *(f"cohyde.{part}" for part in PARTS)) == []


def test_the_foundation_stands_on_nothing_but_itself():
    ours = [f"cohyde.{name}" for name in FOUNDATION]
    above = [m for m in MODULES if not within(m, *ours) and m != "cohyde"]
    assert set(ours) <= set(MODULES)
    assert forbidden(ours, *above) == []


def test_the_parts_of_the_library_know_no_dag_and_no_command_line():
    parts = modules_of(*(f"cohyde.{part}" for part in PARTS))
    assert forbidden(parts, "cohyde.dag", *ENTRANCES, *COMMAND_LINE) == []


def test_stages_know_no_runner_and_no_command_line():
    assert forbidden(modules_of("stages"), *COMMAND_LINE, "ray") == []


def test_nothing_is_imported_in_a_circle():
    graph = {m: {name for name in imports_of(m, at_top=True) if name in MODULES and name != m} for m in MODULES}
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle
    assert set(order) == set(MODULES)


@pytest.mark.parametrize("package", sorted(m for m, path in MODULES.items() if path.name == "__init__.py"))
def test_a_package_imports_nothing_heavy(package):
    assert not roots(imports_of(package)) & WORKERS_ONLY


def test_stage_declarations_import_heavy_libraries_only_inside_functions():
    heavy = {
        m: {name.partition(".")[0] for name in imports_of(m, at_top=True)} & WORKERS_ONLY for m in modules_of("stages")
    }
    assert not {m: names for m, names in heavy.items() if names}


def test_only_the_runner_knows_ray():
    others = [m for m in modules_of("cohyde") if not within(m, "cohyde.dag", "cohyde.doctor", *COMMAND_LINE)]
    assert forbidden(others, "ray") == []


def test_nothing_is_pickled_and_no_remote_code_is_run():
    assert forbidden(list(MODULES), "pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal") == []
    trusting = [
        f"{module}:{node.value.lineno}"
        for module, path in MODULES.items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code"
        if isinstance(node.value, ast.Constant) and node.value.value
    ]
    assert trusting == []
