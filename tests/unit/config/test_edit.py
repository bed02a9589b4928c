"""Changing the placement tables of a file that a person wrote: what stays, and where it goes."""

import tomllib
from importlib import resources

import pytest

from pannier.config.edit import EditError, edit_placement
from pannier.config.load import parse
from pannier.config.schema import Placement
from pannier.config.spans import members, tables
from pannier.errors import ConfigError, PannierError

ON_0 = Placement(devices=(0,))
ON_1 = Placement(devices=(1,))
SPLIT = Placement(devices=(0, 1), tensor_split=(3, 1))


def edited(text, **wanted):
    """The text after the edit, which means what was asked, and to which the edit adds nothing."""
    result = edit_placement(text, wanted)
    assert parse(result.encode()).placement == wanted
    assert edit_placement(result, wanted) == result
    return result


# --- new tables -----------------------------------------------------------------------------------


def test_the_first_table_comes_at_the_end_behind_a_blank_line():
    assert edited("[server]\n\n# the end\n", chat=SPLIT) == (
        "[server]\n\n# the end\n\n[placement.chat]\ndevices = [0, 1]\ntensor_split = [3, 1]\n"
    )


def test_only_what_differs_from_the_defaults_is_written():
    placement = Placement(devices=(1, "CUDA0"), replicas=2, force=True)
    assert edited("[server]\n", chat=placement, embed=ON_1) == (
        "[server]\n\n"
        '[placement.chat]\ndevices = [1, "CUDA0"]\nreplicas = 2\nforce = true\n\n'
        "[placement.embed]\ndevices = [1]\n"
    )


def test_windows_line_ends_are_kept():
    assert edited("[server]\r\n", chat=ON_0) == (
        "[server]\r\n\r\n[placement.chat]\r\ndevices = [0]\r\n"
    )


def test_a_byte_order_mark_is_kept():
    assert edited("\ufeff[server]\n", chat=ON_0).startswith("\ufeff[server]\n")
    assert edited("\ufeffplacement.chat.devices = [1]\n", chat=ON_0) == (
        "\ufeffplacement.chat.devices = [0]\n"
    )


def test_a_file_without_a_line_break_at_its_end_gets_none():
    assert edited("[server]", chat=ON_0) == "[server]\n\n[placement.chat]\ndevices = [0]"


def test_a_file_without_any_key_gets_its_first_table():
    assert edited("", chat=ON_0) == "[placement.chat]\ndevices = [0]\n"
    assert edited("# mine\n", chat=ON_0) == "# mine\n\n[placement.chat]\ndevices = [0]\n"


@pytest.mark.parametrize(
    "text",
    [
        "[server]\n",
        "[server]",
        "[server]\r\n",
        "[server] # c",
        "[server]\n\n",
        "[server]\n\n\n# c\n\n",
        "[server]\n   ",
        "\ufeff[server]\n",
        "[models.placement]\npath = 'placement'\n# [placement.chat]\n",
    ],
)
def test_what_was_added_and_is_taken_out_again_leaves_the_same_bytes(text):
    assert edited(edited(text, chat=SPLIT, embed=ON_1)) == text


def test_the_example_that_init_writes_is_edited_and_put_back_byte_for_byte():
    text = resources.files("pannier.config").joinpath("example.toml").read_bytes().decode()
    result = edited(text, chat=SPLIT)
    assert result == text + "\n[placement.chat]\ndevices = [0, 1]\ntensor_split = [3, 1]\n"
    assert edited(result) == text


def test_a_further_table_comes_behind_the_last_one():
    text = "[placement.chat]\ndevices = [0] # both\n\n# others\n[server]\n"
    assert edited(text, chat=ON_0, embed=ON_1) == (
        "[placement.chat]\ndevices = [0] # both\n\n[placement.embed]\ndevices = [1]\n"
        "\n# others\n[server]\n"
    )


def test_a_model_id_is_quoted_where_toml_needs_it():
    text = '[models."qwen/3:8b"]\npath = "a"\n'
    result = edited(text, **{"qwen/3:8b": ON_0})
    assert result == text + '\n[placement."qwen/3:8b"]\ndevices = [0]\n'


def test_a_table_comes_in_the_place_of_one_that_goes():
    text = "# where\n[placement.chat]\ndevices = [0]\n\n[server]\n"
    assert edited(text, embed=ON_1) == "# where\n[placement.embed]\ndevices = [1]\n\n[server]\n"


# --- taking out -----------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [None, {}])
@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (
            "# a\n\n[placement.chat] # b\ndevices = [0]\n\n# c\nreplicas = 2\n\n[server]\n",
            "# a\n\n[server]\n",
        ),
        (
            "[server]\n# why\n[placement.chat]\ndevices = [0]\n# more\n",
            "[server]\n# why\n# more\n",
        ),
        ("[placement.chat]\ndevices = [0]\n[server]", "[server]"),
        ("[server]\n\n[placement.chat]\ndevices = [0]", "[server]"),
        ("[server]\r\n\r\n[placement.chat]\r\ndevices = [0]", "[server]"),
        ("[placement]\n[server]\n", "[server]\n"),
        ("[server]\n\n[placement]\n# none\n", "[server]\n\n# none\n"),
        ("[placement]\nchat = {devices=[0]}\n[placement.embed]\ndevices=[1]\n[server]", "[server]"),
        ("# a\nplacement = {} # b\n[server]\n", "# a\n[server]\n"),
        ("placement = {chat = {devices = [\n 0, # c\n]}}\n# d\n[server]\n", "# d\n[server]\n"),
        ("placement.chat.devices = [0]\n# a\nplacement.chat.force=true\n[server]", "# a\n[server]"),
        ("placement.chat = {devices = [0]}\n\n\n[server]\n", "\n\n[server]\n"),
        ("\"placement\".'chat' = {devices = [0]}\n[server]\n", "[server]\n"),
        ('[ "place\\u006dent" . chat ]\ndevices = [0]\n[server]\n', "[server]\n"),
    ],
)
def test_no_placement_takes_out_the_tables_and_leaves_no_empty_one(text, rest, nothing):
    assert edit_placement(text, nothing) == rest
    assert edit_placement(rest, nothing) == rest


def test_tables_that_are_spread_over_the_file_are_all_taken_out():
    text = (
        "[placement.chat]\ndevices = [0]\n\n[server]\n\n[placement.embed]\ndevices = [1]\n\n"
        "[memory]\n\n[placement.rerank]\ndevices = [1]\n"
    )
    assert edited(text) == "\n[server]\n\n[memory]\n"


def test_blank_lines_go_with_a_table_only_where_a_gap_would_be_left():
    table = "[placement.chat]\ndevices = [0]\n"
    assert edited(f"[server]\n\n{table}[memory]\n") == "[server]\n\n[memory]\n"
    assert edited(f"[server]\n\n{table}\n[memory]\n") == "[server]\n\n[memory]\n"
    assert edited(f"[server]\n\n\n{table}") == "[server]\n\n"
    assert edited(f"[server]\n  \n{table}") == "[server]\n  \n"
    both = table + "\n" + table.replace("chat", "embed")
    assert edited(f"[server]\n{both}[memory]\n") == "[server]\n[memory]\n"


def test_one_of_several_is_taken_out_and_the_others_keep_their_bytes():
    text = "[placement]\n chat={devices=[0]} # a\n\n  embed.devices=[ 1 ] # b\n embed.force=false\n"
    assert edited(text, embed=ON_1) == (
        "[placement]\n\n  embed.devices=[ 1 ] # b\n embed.force=false\n"
    )
    assert edited(text, chat=ON_0) == "[placement]\n chat={devices=[0]} # a\n"


def test_a_file_that_would_hold_nothing_more_is_refused():
    with pytest.raises(EditError, match="the file is empty") as error:
        edit_placement("# mine\n[placement.chat]\ndevices = [0]\n", None)
    assert isinstance(error.value, PannierError)


# --- changing -------------------------------------------------------------------------------------


def test_an_entry_that_stays_keeps_every_byte():
    text = (
        "[placement.chat]  # a\n\tdevices = [ # b\n 0,\n\n 1 ]# c\n"
        "tensor_split=[0x3,1]\nreplicas = 1 # default\n[server]\n"
    )
    assert edited(text, chat=SPLIT) == text
    assert edited(text, chat=SPLIT, embed=ON_1).startswith(text.removesuffix("[server]\n"))


def test_a_changed_value_keeps_the_comments_around_it():
    text = (
        "[placement.chat] # a\n# b\n  devices = [0]  # c\n\n  replicas = 2 # d\n  force = true# e\n"
    )
    assert edited(text, chat=ON_1) == (
        "[placement.chat] # a\n# b\n  devices = [1]  # c\n\n"
        "  replicas = 1 # d\n  force = false# e\n"
    )


def test_a_new_field_comes_behind_the_last_one_as_far_in():
    text = "[placement.chat]\n  devices = [0] # a\n  # b\n\n[server]\n"
    assert edited(text, chat=SPLIT) == (
        "[placement.chat]\n  devices = [0, 1] # a\n  tensor_split = [3, 1]\n  # b\n\n[server]\n"
    )


def test_a_split_that_goes_takes_its_line_along():
    text = "[placement.chat]\ntensor_split = [3, 1] # a\ndevices = [0, 1]"
    assert edited(text, chat=ON_0) == "[placement.chat]\ndevices = [0]"
    text = "[placement.chat]\ndevices = [0, 1]\ntensor_split = [3, 1] # a"
    assert edited(text, chat=ON_0) == "[placement.chat]\ndevices = [0]"


def test_a_field_goes_and_another_comes_at_the_end_of_the_file():
    text = "[placement.chat]\ndevices = [0]\ntensor_split = [1]"
    assert edited(text, chat=Placement(devices=(0,), replicas=2)) == (
        "[placement.chat]\ndevices = [0]\nreplicas = 2"
    )


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (
            "placement.chat.devices = [0] # a\n[server]\n",
            "placement.chat.devices = [0, 1] # a\nplacement.chat.tensor_split = [3, 1]\n[server]\n",
        ),
        (
            "[placement]\n chat . devices = [0] # a\n embed.devices = [0]\n",
            "[placement]\n chat . devices = [0, 1] # a\n chat.tensor_split = [3, 1]\n",
        ),
        (
            "placement.chat = { devices = [0] } # a\n[server]\n",
            "placement.chat = { devices = [0, 1], tensor_split = [3, 1] } # a\n[server]\n",
        ),
        (
            "[placement]\nchat={devices=[0],replicas=2}# a\n",
            "[placement]\nchat={devices=[0, 1],replicas=1, tensor_split = [3, 1]}# a\n",
        ),
        (
            "placement = {embed = {devices = [1]} , chat={devices=[0]}} # a\n",
            "placement = {chat={devices=[0, 1], tensor_split = [3, 1]}} # a\n",
        ),
        (
            "placement = { chat.devices = [0], embed.devices = [1] }\n",
            "placement = { chat.devices = [0, 1], chat.tensor_split = [3, 1] }\n",
        ),
        (
            "placement = {}\n",
            "placement = { chat = { devices = [0, 1], tensor_split = [3, 1] } }\n",
        ),
        (
            "placement.chat.devices = [0, 1]\n\nplacement.chat.tensor_split = [1, 1] # a\n",
            "placement.chat.devices = [0, 1]\n\nplacement.chat.tensor_split = [3, 1] # a\n",
        ),
        ("[placement.chat]\n[server]", "[placement.chat]\n" + "devices = [0, 1]\n"
         "tensor_split = [3, 1]\n[server]"),
    ],
)  # fmt: skip
def test_an_entry_keeps_its_spelling(text, after):
    assert edited(text, chat=SPLIT) == after


@pytest.mark.parametrize(
    "text",
    [
        "placement.chat.devices = [0]\n[server]\n",
        "placement.chat = {devices = [0]}\n[server]\n",
        "[placement]\nchat.devices = [0]\n[server]\n",
        "[placement]\nchat = {devices = [0]}\n",
        "placement = {chat = {devices = [0]}}\n",
        "placement = {chat.devices = [0]}\n",
        "[placement.chat]\ndevices = [0]\n[placement]\n",
    ],
)
def test_an_entry_can_be_added_to_every_spelling(text):
    result = edited(text, chat=ON_0, embed=SPLIT)
    assert "chat" in result
    assert edited(result, embed=SPLIT)
    assert edited(result, chat=ON_0, rerank=ON_1)


@pytest.mark.parametrize(
    "placement",
    [
        "placement = 3",
        "placement = []",
        "[[placement]]\nchat = 1\n[[placement]]",
        "[[placement.chat]]\ndevices = [0]\n[[placement.chat]]",
        "[placement.chat.devices]\nx = 1",
        "[placement.chat]\ndevices.x = [0]",
        "[placement.chat]\nmain_gpu = 0\ndevices = [0]",
        '[placement.chat]\ndevices = ["0"]',
        "[placement.chat]\ndevices = [true, 1.0]",
        "[placement]\nchat = 3",
        "placement.chat.devices.x = 3",
        "placement = {chat = 3, embed.devices.x = 1}",
        "[placement.nobody]\ndevices = [0]",
        "[placement.chat]\ndevices = [0]\ntensor_split = [1, 2]",
    ],
)
def test_tables_that_are_no_placement_are_replaced_by_one(placement):
    text = f"# mine\n{placement}\n[server]\n# last\n"
    with pytest.raises(ConfigError):
        parse(text.encode())
    result = edited(text, chat=ON_0)
    assert result.startswith("# mine\n")
    assert "[server]\n# last\n" in result
    assert "placement" not in edited(text)


# --- what looks like a table and is none ----------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '[engine]\nargs = [\n"""\\\n  [placement.chat]\\\n  """, # [placement.chat]\n]\n',
        "[engine]\nargs = ['''[placement.chat]''', \"]\", 'x#', \"\\\"]\"]\nhost = 'auto' # ]\n",
        "[models.placement]\npath = 'a'\n[models.placement.env]\nplacement = 'b'\n",
        "[peers.placement]\nurl = 'http://h:1'\n",
        'models.placement = {path = """a"b""""", env = {A = "}", placement = \'"\'}}\n',
        '[models.a]\npath = """"quoted"""" # [placement.chat]\n',
        "[models.a]\npath = 'C:\\'\n[memory]\nreserve = { A = '1GiB' }# }\n",
    ],
)
def test_other_text_is_not_taken_for_a_table(text):
    result = edited(text, chat=ON_0)
    assert result == text + "\n[placement.chat]\ndevices = [0]\n"
    assert edited(result) == text


# --- what cannot be done --------------------------------------------------------------------------


def test_problems_of_the_file_itself_are_told_with_their_lines():
    text = "[placement.chat]\ndevices = [0]\n[server]\nlisten = 3\n"
    with pytest.raises(ConfigError) as error:
        edit_placement(text, {"chat": ON_1})
    assert [(p.where, p.line) for p in error.value.problems] == [("server.listen", 4)]


@pytest.mark.parametrize(
    "text",
    ["[server", "a = 1\na = 2\n", "x = " + "[" * 5000, "a\rb", "[server]\nx='\ud800'\n", "\0"],
)
def test_a_text_that_is_no_config_is_refused(text):
    with pytest.raises(ConfigError):
        edit_placement(text, {"chat": ON_1})


@pytest.mark.parametrize(
    ("key", "placement", "says"),
    [
        ("nobody", ON_0, "placement.nobody"),
        ("chat", Placement(devices=()), "placement.chat.devices"),
        ("chat", Placement(devices=("0",)), "write 0"),
        ("chat", Placement(devices=(True,)), "placement.chat.devices"),
        ("chat", Placement(devices=(0,), tensor_split=(1, 2)), "placement.chat.tensor_split"),
        ("chat", Placement(devices=("a\nb",)), "line break"),
        ("chat", Placement(devices=("\ud800",)), "UTF-8"),
    ],
)
@pytest.mark.parametrize("text", ["[server]\n", "placement = {}\n", "[placement.chat]\n"])
def test_a_placement_that_a_config_does_not_take_is_refused(text, key, placement, says):
    with pytest.raises(EditError, match=says) as error:
        edit_placement(text, {key: placement})
    assert error.value.code == "edit"


def test_a_file_that_would_grow_beyond_what_is_read_is_refused():
    text = "[server]\n" + "#" * (1024 * 1024 - 20)
    with pytest.raises(EditError, match="1 MiB"):
        edit_placement(text, {"chat": SPLIT})


# --- spans ----------------------------------------------------------------------------------------


def test_spans_are_those_of_keys_and_values_without_their_comments():
    text = ' a . "b.c" = [1, # ]\n 2]  # x\n[[t.u]] # y\n d = { e = "}" , f.g = 1 }\r\n'
    text += "h=2020-01-01 00:00:00 #\n"
    root, below = tables(text)
    (first,) = root.assignments
    assert (first.path, text[first.value : first.end]) == (("a", "b.c"), "[1, # ]\n 2]")
    assert text[first.start :].startswith("a . ")
    assert (below.path, below.array, text[below.start : below.end]) == (("t", "u"), True, "[[t.u]]")
    inline, date = below.assignments
    assert text[inline.value : inline.end] == '{ e = "}" , f.g = 1 }'
    assert text[date.value : date.end] == "2020-01-01 00:00:00"
    inner = members(text, inline)
    assert [(each.path, text[each.value : each.end]) for each in inner] == [
        (("t", "u", "d", "e"), '"}"'),
        (("t", "u", "d", "f", "g"), "1"),
    ]
    assert tomllib.loads(text)
