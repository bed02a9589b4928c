"""Whatever words a person gives: they are passed on, and refused exactly where they contradict."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.values import config_of, files_of, machine

from pannier.gguf.model_files import ModelFiles
from pannier.plan.placement import make_plan
from pannier.render.argv import EngineFlavour, render_launch
from pannier.render.conflicts import config_problems, launch_problems
from pannier.render.settings import SETTINGS, given_by, given_in

CONFIG = config_of(
    '[models.a]\npath = "/m/a.gguf"\ncontext = 4096\nslots = 2\ndraft = "d.gguf"\n'
    "[placement.a]\ndevices = [0, 1]\ntensor_split = [3, 1]\n"
)
FILES = {"a": ModelFiles(**{**msgspec.structs.asdict(files_of(CONFIG)["a"]), "draft": "/m/d.gguf"})}
PLAN = make_plan(CONFIG, machine(24, 24), FILES)
ENGINE = EngineFlavour(path="/opt/llama-server")

FLAGS = [(setting.name, flag) for setting in SETTINGS for flag in setting.flags]
SWITCHES = [(setting, flag) for setting in SETTINGS for flag in setting.switches]
VARIABLES = [(setting.name, name) for setting in SETTINGS for name in setting.variables]
NEUTRAL = ["-t", "8", "--temp", "0.7", "--jinja", "-s", "1", "--swa-full", "x y", ""]


def rendered(args=(), env=None):
    model = msgspec.structs.replace(CONFIG.models["a"], args=tuple(args), env=env or {})
    config = msgspec.structs.replace(CONFIG, models={"a": model})
    made = render_launch(PLAN.instances[0], config, FILES["a"], ENGINE, PLAN)
    return config, made


def found(args=(), env=None):
    config, made = rendered(args, env)
    return launch_problems(made, config, "a")


OWN = {each.setting: each.value for each in given_in(rendered()[1].own)}


def spelled(flag: str, value: str, form: int) -> list[str]:
    """A flag with its value in one of the ways in which people write it."""
    if flag.startswith("--") and form % 2:
        flag = "--" + flag[2:].replace("-", "_")
    return [f"{flag}={value}"] if form >= 2 else [flag, value]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(NEUTRAL), max_size=3).filter(lambda words: "-t" not in words[-1:]),
    st.sampled_from(FLAGS),
    st.integers(0, 3),
    st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8),
    st.booleans(),
)
def test_a_flag_is_a_problem_exactly_when_it_says_something_else(before, flag, form, other, same):
    setting, name = flag
    if same and setting not in OWN:
        same = False
    value = OWN[setting] if same else f"other{other}"
    args = [*before, *spelled(name, value, form)]
    problems = found(args)
    if same:
        assert problems == ()
        return
    (problem,) = problems
    assert (problem.code, problem.where) == ("conflict", f"models.a.args[{len(before)}]")
    assert problem.hint
    assert name.lstrip("-").replace("-", "_")[:8] in problem.message.replace("-", "_")


@settings(deadline=None)
@given(st.sampled_from(SWITCHES))
def test_a_switch_that_the_plan_has_not_set_is_a_problem(switch):
    setting, flag = switch
    agrees = setting.switches[flag] == "none"  # there is no projector
    assert bool(found([flag])) is not agrees


@settings(deadline=None)
@given(st.sampled_from(VARIABLES), st.booleans())
def test_a_variable_is_judged_like_its_flag(variable, same):
    setting, name = variable
    value = OWN.get(setting) if same else "other"
    problems = found(env={name: value or "other"})
    assert [each.where for each in problems] == (
        [] if same and setting in OWN else [f"models.a.env.{name}"]
    )


WORDS = st.one_of(
    st.text(max_size=6),
    st.sampled_from([flag for _, flag in FLAGS]),
    st.sampled_from([flag for _, flag in SWITCHES]),
    st.sampled_from(["4096", "=", "-", "--", "-1", "-c=1", "--ctx_size", "all", "none"]),
)


@settings(deadline=None)
@given(
    st.lists(WORDS, max_size=8),
    st.dictionaries(
        st.text(max_size=4) | st.sampled_from([name for _, name in VARIABLES]),
        st.text(max_size=4),
        max_size=3,
    ),
)
def test_any_words_are_read_without_a_crash_and_passed_on_as_they_are(args, env):
    config, made = rendered(args, env)
    assert list(made.launch.argv[len(made.own) - 1 : -2]) == args
    problems = [*launch_problems(made, config, "a"), *config_problems(config)]
    places = {f"models.a.args[{each.place}]" for each in given_in(args)}
    names = {each.place for each in given_by(env)}
    for problem in problems:
        assert problem.where in places or problem.where.removeprefix("models.a.env.") in names
        assert problem.message
        assert problem.hint


@given(st.lists(WORDS, max_size=8))
def test_each_word_is_read_once_and_in_its_order(args):
    places = [each.place for each in given_in(args)]
    assert places == sorted(set(places))
    for each in given_in(args):
        assert each.words.startswith(args[int(each.place)])
