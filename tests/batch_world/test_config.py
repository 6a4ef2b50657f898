"""Configuration of batch sessions: parsing, errors, reloading."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from asched.batch.registry import SessionRegistry
from asched.cli.main import app
from asched.config.batch import load_conf
from asched.config.file import ConfigFileError, Configuration, parse
from asched.config.registry import PluginRegistry
from asched.config.settings import BatchSettings
from asched.daemon.reload.reloader import SessionFiles
from asched.framework.sessions import Compatibility
from asched.state.session_records import SessionsLoaded
from tests.batch_world.jobs import add_gang, bound, check_replay, prepare
from tests.daemon.world import KUBE, OWN, world
from tests.kube.harness import ManualClock

ALLOCATE = "actions: allocate\ntiers: [{plugins: [{name: gang}]}]\n"
BACKFILL = "actions: backfill\ntiers: [{plugins: [{name: gang}]}]\n"


def config(text: str) -> Configuration:
    return parse(text, "test.yaml", PluginRegistry.discover())


def refused(text: str) -> str:
    with pytest.raises(ConfigFileError) as error:
        config(text)
    return str(error.value)


def a_file(folder: Path, text: str) -> Path:
    path = folder / "kube-batch.yaml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    found = config(OWN + "batch: [{}]\n")
    [spec] = found.sessions
    assert spec.scheduler_name == "kube-batch"
    assert spec.actions == ("allocate", "backfill")
    assert (spec.period_s, spec.default_queue) == (1.0, "default")
    assert spec.compatibility is Compatibility.NONE
    assert found.profiles == (), "other pods have another scheduler"
    assert not found.faults


def test_all_fields(tmp_path: Path) -> None:
    conf = a_file(tmp_path, ALLOCATE)
    found = config(
        KUBE + "---\n" + OWN + f"batch: [{{schedulerName: batch, conf: {conf}, period: 1m30s,"
        " defaultQueue: root, compatibility: kube-batch}]\n"
    )
    [spec] = found.sessions
    assert spec.scheduler_name == "batch"
    assert spec.actions == ("allocate",)
    assert (spec.period_s, spec.default_queue) == (90.0, "root")
    assert spec.compatibility is Compatibility.KUBE_BATCH
    assert [profile.scheduler_name for profile in found.profiles] == ["default-scheduler"]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ("[{period: 0s}]", "period must be greater than 0"),
        ("[{schedulerName: ''}]", "schedulerName must not be empty"),
        ("[{}, {}]", 'schedulerName "kube-batch" is repeated'),
        ("[{compatibility: volcano}]", "compatibility"),
        ("[{perioud: 1s}]", "did you mean period?"),
    ],
)
def test_invalid_fields_are_named(batch: str, message: str) -> None:
    assert message in refused(OWN + f"batch: {batch}\n")


def test_scheduler_name_has_either_profile_or_sessions() -> None:
    text = KUBE + "---\n" + OWN + "batch: [{schedulerName: default-scheduler}]\n"
    assert '"default-scheduler" is also a profile' in refused(text)


def test_invalid_conf_falls_back_to_defaults(tmp_path: Path) -> None:
    for text in ("actions: [", "actions: {a: b}"):
        found = config(OWN + f"batch: [{{conf: {a_file(tmp_path, text)}}}]\n")
        assert found.sessions[0].actions == ("allocate", "backfill")
        [fault] = found.faults
        assert "yaml: line 1" in fault
        assert "default configuration is used" in fault
    missing = config(OWN + f"batch: [{{conf: {tmp_path / 'none.yaml'}}}]\n")
    assert "No such file" in missing.faults[0]


def test_unknown_action_or_plugin_is_named(tmp_path: Path) -> None:
    path = a_file(tmp_path, "actions: allocat\n")
    assert 'unknown action "allocat"; did you mean allocate?' in refused(
        OWN + f"batch: [{{conf: {path}}}]\n"
    )
    path = a_file(tmp_path, "actions: allocate\ntiers: [{plugins: [{name: Gang}]}]\n")
    assert 'unknown plugin "Gang"; did you mean gang?' in refused(
        OWN + f"batch: [{{conf: {path}}}]\n"
    )
    lenient = config(OWN + f"batch: [{{conf: {path}, compatibility: kube-batch}}]\n")
    assert 'unknown plugin "Gang" is skipped' in lenient.warnings[0]


def test_config_check_shows_sessions_and_rejects_invalid_conf(tmp_path: Path) -> None:
    conf = a_file(
        tmp_path, "actions: allocate\ntiers: [{plugins: [{name: gang, enableJobOrder: no}]}]"
    )
    path = tmp_path / "asched.yaml"
    path.write_text(OWN + f"batch: [{{conf: {conf}}}]\n")
    shown = CliRunner().invoke(app, ["config", "check", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "Sessions for kube-batch, every 1 s: allocate" in shown.stdout
    assert "enableJobOrder" in shown.stdout
    conf.write_text("actions: [")
    broken = CliRunner().invoke(app, ["config", "check", str(path)])
    assert broken.exit_code == 2
    assert "default configuration is used" in broken.stderr


async def test_changed_conf_is_reloaded(tmp_path: Path) -> None:
    path = a_file(tmp_path, ALLOCATE)
    settings = (BatchSettings(conf=str(path)),)
    registry, loaded = SessionRegistry.discover(), list[SessionsLoaded]()
    spec = load_conf(settings[0], registry).spec
    files = SessionFiles(settings, [spec], registry, ManualClock(), loaded.append)
    await files.poll()
    assert loaded == []
    for nonsense in ("actions: [", "actions: nothing", ""):
        path.write_text(nonsense)
        await files.poll()
    assert loaded == [], "an invalid file has no effect"
    path.write_text(BACKFILL)
    await files.poll()
    await files.poll()
    assert [record.sessions[0].actions for record in loaded] == [("backfill",)]
    path.unlink()
    await files.poll()
    assert len(loaded) == 1


async def test_reloaded_sessions_are_recorded(tmp_path: Path) -> None:
    path = a_file(tmp_path, BACKFILL)
    async with world(tmp_path, nodes=1) as w:
        prepare(w)
        async with w.daemon(OWN + f"batch: [{{conf: {path}, period: 10ms}}]\n") as daemon:
            await daemon.engine.synced.wait()
            add_gang(w, "job", 2, "1")
            await w.until(lambda: w.condition("job-1").get("reason") == "Unschedulable")
            assert bound(w, "job") == 0, "backfill places what asks for nothing"
            path.write_text(ALLOCATE)
            await w.until(lambda: bound(w, "job") == 2)
        assert await check_replay(w) > 0
