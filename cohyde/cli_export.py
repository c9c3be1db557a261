"""``cohyde export``: the models of one round, the index and the catalogue, for people who do not have us."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cohyde.cli_jobs import Job, job_of, report_of
from cohyde.cli_options import DEFAULT_STORE, AsJson, Run, StoreFolder, prepare_for_models
from cohyde.errors import UserError

if TYPE_CHECKING:
    from stages.export import Source

To = Annotated[Path, typer.Option("--to", metavar="DIR", help="The folder to write.", show_default=False)]
Round = Annotated[
    int | None,
    typer.Option("--round", metavar="N", min=0, help="This round; 0 is after warm-up.", show_default="the selected"),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an exported folder at --to.")]
Push = Annotated[
    str | None,
    typer.Option("--push", metavar="OWNER/NAME", help="Upload it to the hub too, with the token in HF_TOKEN; private."),
]
Public = Annotated[bool, typer.Option("--public", help="Make a repository that --push creates public.")]


def export(
    run_name: Run,
    to: To,
    round_number: Round = None,
    overwrite: Overwrite = False,
    push: Push = None,
    public: Public = False,
    store: StoreFolder = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Write the models of a run as folders that anyone can load.

    The encoder for sentence-transformers, the rewriter for transformers, each with a model card; the FAISS index, the
    catalogue, and a script that searches with them. Without --round it is the round that dev selects.
    """
    from cohyde import hub
    from cohyde.live import Work
    from cohyde.terminal import print_json
    from cohyde.terminal_data import print_files
    from stages.export import export as write

    if push is not None:
        hub.check_push(push)
    elif public:
        raise UserError("--public is about a repository that --push makes", "add --push OWNER/NAME, or leave it out")
    job = job_of(run_name, store)
    stage, why = _chosen(job, round_number)
    prepare_for_models()
    with Work(f"exporting {stage} of {job.name}"):
        files = write(_source(job, stage, why), to, overwrite=overwrite)
    address = None
    if push is not None:
        with Work(f"pushing to {push}"):
            address = hub.push(to, push, public=public)
    if as_json:
        number = int(stage.partition(".")[2])
        told = {"run": job.name, "stage": stage, "round": number, "why": why}
        print_json({**told, "path": str(to), "files": files, "pushed": address})
        return
    print_files(to, files)
    _tell(job, stage, why, to, address)


def _tell(job: Job, stage: str, why: str, to: Path, address: str | None) -> None:
    from cohyde.terminal import err

    err().print(f"{job.name}: exported {stage}, {why}", style="dim", markup=False, soft_wrap=True)
    if address is not None:
        err().print(f"pushed to {address}", style="dim", markup=False, soft_wrap=True)
    err().print(f'try it: python {to / "search.py"} "will I get wet on my way home"', style="dim", soft_wrap=True)


def _chosen(job: Job, number: int | None) -> tuple[str, str]:
    """The evaluation whose models are exported, and why that one.

    Raises:
        UserError: no such round; or none was asked for, and the run is not finished, so that nothing is selected yet.
    """
    if number is not None:
        _check_round(job, number)
        return f"E.{number}", "as asked for"
    finished = job.store.finished(job.seen.nodes.values())
    missing = [node.id for name, node in job.seen.nodes.items() if name not in finished]
    if missing:
        raise UserError(
            f"run {job.name} is not finished, so no round is selected yet: {', '.join(missing)} missing",
            f"go on with `{job.command}`, or export a round that is done with --round N",
        )
    selected = report_of(job).selected
    if selected is not None:
        return selected, "selected by dev NDCG@5 (mean over tiers)"
    return f"E.{job.settings.rounds}", "the last round, since the dev split was not scored"


def _check_round(job: Job, number: int) -> None:
    if number > job.settings.rounds:
        raise UserError(f"run {job.name} has no round {number}", f"give --round 0 to {job.settings.rounds}")
    finished = job.store.finished(job.seen.nodes.values())
    missing = [node.id for name, node in job.seen.until(f"E.{number}").nodes.items() if name not in finished]
    if missing:
        raise UserError(
            f"run {job.name}: round {number} is not done yet: {', '.join(missing)} missing",
            f"go on with `{job.command}`",
        )


def _source(job: Job, stage: str, why: str) -> "Source":
    from stages.export import Source
    from stages.search import find_trained

    trained = find_trained(job.store, job.name, stage)
    part = job.seen.until(stage)
    node = part.nodes[part.named(stage)[0]]
    manifests = job.store.manifests((one, job.name) for one in part.nodes.values())
    data = part.nodes[node.inputs["data"]]
    return Source(
        trained=trained,
        why=why,
        config=job.settings,
        evaluation=job.store.usable(node.id, node.fingerprint, job.name),
        data=job.store.usable(data.id, data.fingerprint, job.name),
        made_by={name: part.nodes[source].id for name, source in node.inputs.items()},
        manifests=[manifests[name] for name in part.nodes],
    )
