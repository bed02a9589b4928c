"""The folder of the demo: a config that is accepted, and nobody's edit is overwritten."""

import pytest

from pannier.config.load import parse
from pannier.demo.files import MODEL, write_folder
from pannier.errors import PannierError


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "kept.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.mark.parametrize("host", ["auto", "llama-swap", "direct"])
def test_the_config_of_the_demo_is_accepted(tmp_path, model, host):
    path = write_folder(tmp_path / "demo", model, host=host, listen="127.0.0.1:8484")
    config = parse(path.read_bytes())
    assert (config.server.listen, config.engine.host) == ("127.0.0.1:8484", host)
    assert {each.role for each in config.models.values()} == {"chat", "embed"}
    for each in config.models.values():
        assert (path.parent / each.path).read_bytes() == b"GGUF"
    assert path.with_name("config.schema.json").exists()


def test_a_config_that_is_there_is_left_alone(tmp_path, model):
    folder = tmp_path / "demo"
    path = write_folder(folder, model, host="auto", listen="127.0.0.1:8484")
    path.write_text("[server]\n")
    assert write_folder(folder, model, host="direct", listen="127.0.0.1:1") == path
    assert path.read_text() == "[server]\n"


def test_a_link_to_a_model_that_is_gone_is_made_anew(tmp_path, model):
    folder = tmp_path / "demo"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / MODEL).symlink_to(tmp_path / "gone")
    write_folder(folder, model, host="auto", listen="127.0.0.1:8484")
    assert (folder / "models" / MODEL).read_bytes() == b"GGUF"


def test_a_folder_that_cannot_be_written_is_told(tmp_path, model):
    (tmp_path / "demo").write_text("a file")
    with pytest.raises(PannierError, match="cannot be written") as error:
        write_folder(tmp_path / "demo", model, host="auto", listen="127.0.0.1:8484")
    assert "--folder" in str(error.value)
