import shlex
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from maxent_grpo.commands.sweep import run_sweep
from maxent_grpo.config.declared import options
from maxent_grpo.config.load import check
from maxent_grpo.errors import ConfigError, DataError
from maxent_grpo.sweeps.failure import SweepError
from maxent_grpo.sweeps.record import Standing, read_jobs


def note(config: DictConfig) -> float:
    """A small job: check, write a file into its folder, return tau; seed 13 is unlucky."""
    runtime = HydraConfig.get().runtime
    config.run.dir = runtime.output_dir
    checked = check(config)
    if checked.seed == 13:
        raise DataError("seed 13 has no data")
    (Path(runtime.output_dir) / "note.txt").write_text(f"{checked.seed}")
    (Path(runtime.output_dir) / "from.txt").write_text(f"{checked.checkpoint.resume_from}")
    return checked.scoring.weighting.tau


def folders(sweep: Path) -> list[str]:
    return sorted(path.name for path in sweep.iterdir() if path.is_dir())


def test_every_combination_runs_in_a_folder_named_by_what_changes(tmp_path: Path) -> None:
    overrides = ["scoring=maxent", "scoring.weighting.tau=0.1,0.2", "seed=3", f"hydra.sweep.dir={tmp_path}/sweep"]
    results = run_sweep(overrides, note)
    assert [result.return_value for result in results] == [0.1, 0.2]
    assert folders(tmp_path / "sweep") == ["0-scoring.weighting.tau=0.1", "1-scoring.weighting.tau=0.2"]
    assert (tmp_path / "sweep" / "1-scoring.weighting.tau=0.2" / "note.txt").read_text() == "3"


def test_a_bad_job_fails_alone_however_it_is_bad(tmp_path: Path) -> None:
    overrides = ["scoring=bogus,grpo", "seed=1,13", f"hydra.sweep.dir={tmp_path}/sweep"]
    with pytest.raises(SweepError) as caught:
        run_sweep(overrides, note)
    assert folders(tmp_path / "sweep") == ["2-scoring=grpo,seed=1", "3-scoring=grpo,seed=13"]
    assert (tmp_path / "sweep" / "2-scoring=grpo,seed=1" / "note.txt").read_text() == "1"
    bogus = f"scoring=bogus: no such option; scoring has {', '.join(options('scoring'))}"
    assert str(caught.value).splitlines() == [
        "3 of 4 jobs failed:",
        *("  - scoring=bogus seed=1", f"      {bogus}"),
        *("  - scoring=bogus seed=13", f"      {bogus}"),
        *("  - scoring=grpo seed=13", "      DataError: seed 13 has no data"),
    ]


def test_a_job_that_cannot_run_is_named_before_the_others_begin(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SweepError):
        run_sweep(["seed=1,x,2", f"hydra.sweep.dir={tmp_path}/sweep"], note)
    lines = capfd.readouterr().out.splitlines()
    refused = lines.index("job 2 of 3, 1-seed=x: cannot run: seed=x: must be an integer")
    assert refused < min(number for number, line in enumerate(lines) if line.endswith(": starts"))


def test_a_preset_can_say_what_is_swept(tmp_path: Path) -> None:
    file = tmp_path / "experiment" / "study.yaml"
    file.parent.mkdir()
    file.write_text(
        "# @package _global_\nscoring:\n  weighting:\n    tau: 0.3\nhydra:\n  sweeper:\n    params:\n      seed: 4,5\n"
    )
    overrides = ["experiment=study", f"hydra.sweep.dir={tmp_path}/sweep"]
    results = run_sweep(overrides, note, config_dir=str(tmp_path))
    assert [result.return_value for result in results] == [0.3, 0.3]
    assert folders(tmp_path / "sweep") == ["0-seed=4", "1-seed=5"]


def test_a_sweep_that_cannot_be_read_is_refused_as_a_whole() -> None:
    with pytest.raises(ConfigError, match="seed: cannot be read as setting=value"):
        run_sweep(["seed"], note)
    with pytest.raises(ConfigError, match="a grid needs separate values"):
        run_sweep(["scoring.kl_beta=interval(0,1)"], note)
    with pytest.raises(ConfigError, match="experiment=nothing: no such option"):
        run_sweep(["experiment=nothing", "seed=1,2"], note)


def test_one_folder_for_all_jobs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run_sweep(["seed=1,2", f"run.dir={tmp_path}/run", f"hydra.sweep.dir={tmp_path}/sweep"], note)
    assert caught.value.problems == [
        f"run.dir={tmp_path}/run: the jobs of a sweep have folders of their own inside the sweep's; write "
        "hydra.sweep.dir=FOLDER for that"
    ]
    assert not list(tmp_path.iterdir())


def test_folders_can_be_named_otherwise(tmp_path: Path) -> None:
    dir_and_name = [f"hydra.sweep.dir={tmp_path}/sweep", "hydra.sweep.subdir='${seed} of ${scoring.kl_beta}/run'"]
    run_sweep(["seed=4,5", *dir_and_name], note)
    assert (tmp_path / "sweep" / "4 of 0.0" / "run" / "note.txt").read_text() == "4"
    assert folders(tmp_path / "sweep") == ["4 of 0.0", "5 of 0.0"]


def test_a_folder_whose_name_would_be_too_long_is_refused_before_it_is_made(tmp_path: Path) -> None:
    steps = ",".join(map(str, range(1, 100)))
    with pytest.raises(SweepError, match=r"its folder's name would be 3\d\d bytes long"):
        run_sweep([f"run.profile_steps=[1],[{steps}]", f"hydra.sweep.dir={tmp_path}/sweep"], note)


def test_no_folder_is_named_after_a_secret(tmp_path: Path) -> None:
    swept = "logging.wandb.name=hf_abcdefghijklmnop,plain"
    with pytest.raises(SweepError, match="its folder would be named after a secret"):
        run_sweep([swept, f"hydra.sweep.dir={tmp_path}/sweep"], note)
    assert not [path for path in tmp_path.rglob("*") if "hf_abc" in path.name]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hf_abcdef" in path.read_bytes()]


def test_every_job_goes_on_from_what_the_user_named(tmp_path: Path) -> None:
    saved = tmp_path / "run" / "checkpoints" / "step_1"
    saved.mkdir(parents=True)
    (saved / "manifest.json").touch()
    run_sweep(["seed=4,5", f"checkpoint.resume_from={tmp_path}/run", f"hydra.sweep.dir={tmp_path}/sweep"], note)
    for name in ("0-seed=4", "1-seed=5"):
        assert (tmp_path / "sweep" / name / "from.txt").read_text() == f"{tmp_path}/run"


def test_jobs_that_are_queued_again_ask_for_their_latest_checkpoint(tmp_path: Path) -> None:
    words = ["seed=4,5", "checkpoint.resume_from=latest", "run.requeue=out_of_time", "run.sweep_resume=true"]
    command = [*words, f"hydra.sweep.dir={tmp_path}/sweep"]

    def ends_early(config: DictConfig) -> None:
        note(config)
        saved = Path(config.run.dir) / "checkpoints" / "step_1"
        saved.mkdir(parents=True)
        (saved / "manifest.json").write_text("{}")
        raise DataError("later")

    with pytest.raises(SweepError):
        run_sweep(command, ends_early)
    run_sweep(command, note)
    for name in ("0-seed=4", "1-seed=5"):
        assert (tmp_path / "sweep" / name / "from.txt").read_text() == "latest"


def test_a_job_that_is_told_to_stop_ends_a_sweep_in_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a=b,c"

    def stopped(config: DictConfig) -> None:
        note(config)
        raise SystemExit(75)

    with pytest.raises(SystemExit) as caught:
        run_sweep(["seed=4,5", f"hydra.sweep.dir='{folder}'"], stopped)
    assert caught.value.code == 75
    jobs = read_jobs(folder)
    assert [job.standing for job in jobs] == [Standing.interrupted, Standing.waiting]
    assert jobs[0].problems == ["its run was stopped before its last step"]
    said = capsys.readouterr().out.splitlines()[-1].partition("continue it: python train.py -m ")[2]
    run_sweep(shlex.split(said), note)
    assert [job.standing for job in read_jobs(folder)] == [Standing.finished] * 2


def test_no_secret_is_in_the_traceback_of_a_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def loses(_: DictConfig) -> None:
        raise OSError("http://me:" + "hidden" + "@host is not there")

    with pytest.raises(SweepError):
        run_sweep(["seed=4", f"hydra.sweep.dir={tmp_path}/sweep"], loses)
    texts = [path.read_text() for path in (tmp_path / "sweep").rglob("*") if path.is_file()]
    assert sum("OSError" in text for text in texts) > 1
    assert not any("hidden@" in text for text in [*texts, capfd.readouterr().out])
