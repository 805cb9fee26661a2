"""The notebooks: rules of their form, and a run of each in seconds instead of minutes."""

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# What a test run uses in place of the parameters of each notebook.
QUICK = {
    "01-what-huge-pages-buy": {
        "size": "4MiB",
        "max_seconds": 0.05,
        "region_size": "4MiB",
        "simulated_size": "16MiB",
        "simulated_seconds": 0.002,
    },
    "02-what-a-tlb-miss-costs": {
        "size": "4MiB",
        "passes": 2,
        "span": "4MiB",
        "accesses": "100K",
        "largest": "1MiB",
        "nodes": 64,
        "max_seconds": 0.05,
    },
    "03-six-gib-of-random-lookups": {
        "records": "50K",
        "small_records": "20K",
        "max_seconds": 0.03,
        "simulated_records": "1M",
        "simulated_batches": [1, 8],
        "simulated_seconds": 0.01,
    },
    "08-anatomy-of-a-tlb": {
        "most_pages": 512,
        "point_seconds": 0.02,
        "memory": "8MiB",
        "max_seconds": 3.0,
        "simulated_memory": "8MiB",
        "simulated_seconds": 1.0,
    },
    "04-object-layout": {
        "max_sessions": 4000,
        "article_sessions": 2000,
        "max_seconds": 0.02,
        "simulated_sessions": 2000,
        "simulated_seconds": 0.002,
    },
    "05-how-to-measure-it-wrong": {
        "most_pages": 128,
        "per_octave": 1,
        "accesses": 20_000,
        "max_seconds": 0.02,
        "array_size": 8 << 20,
    },
    "06-demand-paging": {
        "size": "8MiB",
        "kinds_size": "8MiB",
        "file_size": "8MiB",
        "calls": 64,
        "repeats": 2,
        "max_seconds": 0.05,
    },
    "07-is-my-program-bound-by-translation": {
        "pages": 2048,
        "seconds": 0.03,
        "watched_seconds": 0.3,
        "rounds": 1,
        "function_rounds": 3,
    },
    "09-design-a-tlb": {"point_seconds": 0.02, "precision": 0.05, "per_octave": 1, "most_size": "2MiB"},
}


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS
    assert {path.stem for path in NOTEBOOKS} == set(QUICK)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_form(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(notebook))
    assert any("parameters" in cell.metadata.get("tags", ()) for cell in code_cells(notebook))
    assert any("assert " in cell.source for cell in code_cells(notebook))
    assert notebook.cells[0].cell_type == "markdown"


@pytest.mark.no_asan
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")  # of the machinery that runs it
def test_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    notebook = read(path)
    names = QUICK[path.stem]
    parameters = next(c for c in code_cells(notebook) if "parameters" in c.metadata.get("tags", ()))
    assert all(f"{name} = " in parameters.source for name in names)
    parameters.source += "\n" + "\n".join(f"{name} = {value!r}" for name, value in names.items())
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": os.fspath(tmp_path)}}
    )
    client.execute()
    printed = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert not [output for output in printed if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in printed)
