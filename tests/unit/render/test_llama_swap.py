"""The config of a group's llama-swap, by the numbers of its spec (SC-1 to SC-18)."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from tests.fakes.values import config_of, files_of, groups_of, machine

from pannier.fleet import launcher
from pannier.fleet.owner import LOAD_MARGIN_S
from pannier.fleet.ports import Ports, ephemeral_start
from pannier.fleet.store import atomic_write
from pannier.plan.roles import MIB, ROLES, load_ceiling_s
from pannier.render.flags import PORT_FLAG
from pannier.render.llama_swap import GroupLaunch, command, group_launch, render

TWO = """
[models.a]
path = "/m/a.gguf"
aliases = ["alias-of-a"]
[models.b]
path = "/m/b.gguf"
ttl = "90s"
"""


def shared(text=TWO):
    """A group of two members that swap."""
    config = config_of(text)
    groups = groups_of(config, machine(6), files_of(config, 4.0))
    (group,) = groups.values()
    return group


def rendered(group, **options):
    ports = {launch.instance: 9000 + number for number, launch in enumerate(group.launches)}
    return json.loads(render(group, ports, key="k" * 32, **options))


def test_sc_1_the_document_is_json_of_raw_utf_8_which_is_yaml_too():
    text = '[models."ü😀"]\npath = "/m/ü😀.gguf"\n'
    (group,) = groups_of(config_of(text)).values()
    data = render(group, {"ü😀": 9000}, key="k")
    assert "ü😀".encode() in data
    assert b"\\u" not in data


def test_sc_1_the_same_input_gives_the_same_bytes():
    group = shared()
    ports = {"a": 9000, "b": 9001}
    assert render(group, ports, key="k") == render(group, dict(reversed(ports.items())), key="k")


def test_sc_1_a_config_is_written_whole_and_for_its_owner_alone(tmp_path):
    path = tmp_path / "group.json"
    path.write_bytes(b"old")
    path.chmod(0o644)
    with path.open("rb") as reader:
        atomic_write(path, b"new")
        assert reader.read() == b"old", "who reads meanwhile reads the old one to its end"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["group.json"]


def test_sc_2_the_top_keys_are_these_and_what_we_do_ourselves_is_off():
    document = rendered(shared())
    assert set(document) == {
        "healthCheckTimeout", "unloadTimeout", "logLevel", "models", "groups",
        "sendLoadingState", "captureBuffer", "performance", "apiKeys",
    }  # fmt: skip
    assert document["logLevel"] == "info"
    assert document["sendLoadingState"] is False
    assert document["captureBuffer"] == 0
    assert document["performance"] == {"disabled": True}
    assert document["apiKeys"] == ["k" * 32]


def test_sc_3_a_model_has_what_is_needed_and_no_environment_without_one():
    group = shared()
    bare = msgspec.structs.replace(
        group,
        launches=tuple(msgspec.structs.replace(launch, env={}) for launch in group.launches),
    )
    entry = rendered(bare)["models"]["a"]
    assert set(entry) == {"cmd", "proxy", "ttl", "concurrencyLimit"}
    assert entry["concurrencyLimit"] >= 100_000


def test_sc_4_a_member_without_a_port_is_an_error():
    with pytest.raises(KeyError, match="b"):
        render(shared(), {"a": 9000}, key="k")


def test_sc_5_the_proxy_is_a_literal_address_on_the_members_own_port():
    models = rendered(shared())["models"]
    assert models["a"]["proxy"] == "http://127.0.0.1:9000"
    assert models["b"]["proxy"] == "http://127.0.0.1:9001"
    assert "localhost" not in json.dumps(models)


def test_sc_6_the_port_is_added_last_and_only_here():
    launch = shared().launches[0]
    assert command(launch, 9000) == (*launch.argv, "--port", "9000")
    assert rendered(shared())["models"]["a"]["cmd"].endswith(" --port 9000")


def test_sc_7_a_value_of_the_environment_that_llama_swap_would_change_is_refused():
    group = shared()
    broken = msgspec.structs.replace(group.launches[0], env={"A": "${PORT}"})
    with pytest.raises(ValueError, match=r"A.*macro"):
        render(
            msgspec.structs.replace(group, launches=(broken, group.launches[1])),
            {"a": 9000, "b": 9001},
            key="k",
        )


def test_sc_7_a_windows_command_line_is_quoted_the_windows_way():
    cmd = rendered(shared(), windows=True)["models"]["a"]["cmd"]
    assert cmd.startswith('"python" "-m" "pannier.fleet.launcher"')


def test_sc_8_the_port_flag_is_one_constant():
    assert launcher.PORT_FLAG is PORT_FLAG
    package = Path(launcher.__file__).parents[1]
    written = {
        module.name
        for module in package.rglob("*.py")
        if f'"{PORT_FLAG}"' in module.read_text(encoding="utf-8")
    }
    assert written == {"flags.py", "validate.py"}, "the reader of the config refuses it by name"


def test_sc_9_the_environment_is_a_list_and_sc_11_the_input_is_not_changed():
    group = shared()
    before = msgspec.json.encode(group)
    assert rendered(group)["models"]["a"]["env"] == [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES=0",
    ]
    assert msgspec.json.encode(group) == before


def test_sc_12_there_is_one_neutral_group_with_all_real_ids_in_plan_order():
    assert rendered(shared())["groups"] == {
        "pannier": {"swap": True, "exclusive": False, "persistent": True, "members": ["a", "b"]}
    }


def test_sc_12_an_alias_is_never_a_member():
    assert "alias-of-a" not in json.dumps(rendered(shared()))


def test_sc_13_each_member_has_its_time_to_live_and_none_means_never():
    models = rendered(shared())["models"]
    assert (models["a"]["ttl"], models["b"]["ttl"]) == (0, 90)


def test_sc_13_a_time_to_live_below_a_second_does_not_become_never():
    assert rendered(shared(TWO.replace("90s", "250ms")))["models"]["b"]["ttl"] == 1


def test_sc_14_a_port_lies_below_the_ephemeral_range_and_is_given_out_once():
    ports = Ports()
    taken = [ports.take() for _ in range(20)]
    assert len(set(taken)) == 20
    assert max(taken) < ephemeral_start()


@pytest.mark.parametrize(
    ("role", "size", "seconds"),
    [
        ("chat", 0, 600), ("vision", 0, 600), ("rerank", 0, 600), ("embed", 0, 120),
        ("chat", 150 * MIB * 600, 600), ("chat", 150 * MIB * 600 + 1, 601),
        ("embed", 150 * MIB * 121, 121), ("chat", 150 * MIB * 3600, 3600),
    ],
)  # fmt: skip
def test_sc_15_the_ceiling_of_a_cold_load(role, size, seconds):
    assert load_ceiling_s(role, size) == seconds
    assert isinstance(load_ceiling_s(role, size), int)


def test_sc_15_all_files_of_a_load_count():
    text = '[models.a]\nrole = "vision"\npath = "/m/a.gguf"\n'
    config = config_of(text)
    files = files_of(config, 80.0)
    size = files["a"].weights
    with_projector = msgspec.structs.replace(files["a"], projector="/m/p", projector_bytes=size)
    groups = groups_of(config, machine(200, 200), {"a": with_projector})
    assert groups["a"].launches[0].load_timeout_s == load_ceiling_s("vision", 2 * size)


def test_sc_16_the_health_check_waits_for_the_slowest_member():
    text = TWO + '[models.c]\nrole = "embed"\npath = "/m/c.gguf"\n'
    group = shared(text)
    slow = msgspec.structs.replace(group.launches[1], load_timeout_s=4321)
    wide = msgspec.structs.replace(group, launches=(group.launches[0], slow, *group.launches[2:]))
    assert rendered(wide)["healthCheckTimeout"] == 4321
    assert rendered(group)["healthCheckTimeout"] == 600


def test_sc_16_without_members_it_is_the_largest_floor():
    empty = GroupLaunch(id="g", swap=False, launches=(), identity="")
    assert rendered(empty)["healthCheckTimeout"] == max(r.load_floor_s for r in ROLES.values())


def test_sc_17_what_the_fleet_waits_by_is_the_same_number():
    config = config_of(TWO)
    groups = groups_of(config, machine(24), files_of(config, 4.0))
    for group in groups.values():
        (launch,) = group.launches
        assert rendered(group)["healthCheckTimeout"] == launch.load_timeout_s


def test_sc_17_no_wait_of_ours_ends_before_llama_swap_gives_up():
    assert LOAD_MARGIN_S > 0


def test_sc_18_an_embedder_that_hangs_holds_its_callers_for_two_minutes_at_most():
    text = '[models.e]\nrole = "embed"\npath = "/m/e.gguf"\n'
    (group,) = groups_of(config_of(text)).values()
    assert rendered(group)["healthCheckTimeout"] == 120


def test_every_command_is_started_behind_its_launcher():
    config = config_of(TWO)
    (launch,) = groups_of(config)["a"].launches
    end = launch.argv.index("--")
    assert launch.argv[end - 2 : end + 2] == ("--instance", "a", "--", "/opt/llama-server")


def test_a_group_without_the_member_asked_for_says_so():
    with pytest.raises(KeyError, match="nobody"):
        group_launch("g", [], swap=False, host="direct", launcher=()).launch("nobody")


def test_every_behaviour_of_the_spec_is_named_by_a_test():
    folders = [Path(__file__).parent, Path(__file__).parents[2] / "engine"]
    named = {
        int(number)
        for folder in folders
        for file in folder.glob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
        for number in re.findall(r"sc_(\d+)_", name)
    }
    assert named == set(range(1, 20))
