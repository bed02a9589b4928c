"""Answers a question about memory: reads the headers, and what `serve` has learned of such loads.

The edge of this folder, and all it touches are the named files and `learned.toml`, none of which it
changes: no network, no program, no running Pannier, no lock. What is wrong with the model's files
is an error in words; what is wrong with `learned.toml` is a note, as the header is enough.

Must not: read more of a model than its header, or set a damaged `learned.toml` aside, which is
`serve`'s.
"""

from pathlib import Path

import msgspec

from pannier.config.schema import Model
from pannier.errors import PannierError
from pannier.fleet.learned_store import FILE, files_identity
from pannier.gguf.files import HeaderCache, find_model
from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.profile import Profile, profile_of, trained_context
from pannier.gguf.footprint.projector import Projector, projector_of
from pannier.gguf.footprint.values import LaunchSettings
from pannier.gguf.header import Header
from pannier.gguf.learned import Learned, Load, decode
from pannier.gguf.measured import drift
from pannier.gguf.model_files import ModelFiles
from pannier.memory.question import Answer, Question
from pannier.memory.remembered import in_words, loads_like

LARGEST_LEARNED = 16 << 20
"""Bytes; a full learned.toml has some hundred thousand."""

_PROJECTOR = "clip"
"""The architecture that projectors name: tools/mtmd/clip.cpp."""


def answer(question: Question, base: Path, state: Path) -> Answer:
    """What the launch takes; `base` is the folder of relative paths, `state` serve's folder.

    Raises PannierError for a file that is missing, and GgufError for one that cannot be used.
    """
    files = find_files(question, base)
    headers = HeaderCache()
    profile = profile_of(_model(headers, files.shards))
    projector = _projector(headers, files)
    draft = profile_of(_model(headers, files.draft_shards)) if files.draft_shards else None
    settings = question.settings(trained_context(profile))
    estimate = footprint(profile, settings, projector=projector, draft=draft)
    if profile.indivisible and _is_split(settings):
        estimate = msgspec.structs.replace(estimate, exact=False)
    learned, problems = read_learned(state / FILE)
    load = _measured(learned, settings, profile, files)
    taken, told = estimate, problems
    if load is not None:
        taken = learned.apply(estimate, load.key, profile.architecture)
        told = (*problems, f"measured: {in_words(load)}", *drift(estimate, load.took))
    return Answer(
        model=question.model,
        parts=len(files.shards),
        architecture=profile.architecture,
        settings=settings,
        footprint=taken,
        notes=(*_remarks(question, settings, profile), *estimate.notes, *told),
    )


def find_files(question: Question, base: Path) -> ModelFiles:
    """All files of the question. Raises PannierError that names those that are not there."""
    model = Model(
        role="vision" if question.mmproj else "chat",
        path=question.model,
        mmproj=question.mmproj or "none",
        draft=question.draft,
    )
    files = find_model(model, base)
    gone = [path for path in files.missing if not _is_there(path)]
    if not gone:
        return files
    hint = "give the path of a GGUF file"
    for parts in (files.shards, files.draft_shards):
        if len(parts) > 1 and not set(gone).isdisjoint(parts):
            hint = f"the model is in {len(parts)} files, which have to be in one folder"
    raise PannierError(f"not there: {', '.join(gone)}", hint=hint, code="missing-file")


def read_learned(path: Path) -> tuple[Learned, tuple[str, ...]]:
    """What `serve` has learned, and why that cannot be used. Never raises, changes nothing."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_LEARNED + 1)
        if len(content) > LARGEST_LEARNED:
            raise ValueError(f"larger than {LARGEST_LEARNED >> 20} MiB")
        found = decode(content)
    except (FileNotFoundError, NotADirectoryError):
        return Learned(), ()
    except OSError as error:
        return Learned(), (f"{path} cannot be read: {error.strerror or error}",)
    except ValueError as error:
        return Learned(), (f"{path} cannot be used: {error}",)
    if found is None:
        return Learned(), (f"{path} was written by another version of Pannier: not used",)
    return found, ()


def _measured(
    learned: Learned, settings: LaunchSettings, profile: Profile, files: ModelFiles
) -> Load | None:
    """The load of these files, launched like this, that tells most."""
    like = loads_like(
        learned,
        settings,
        profile.units,
        projector=files.projector is not None,
        draft=files.draft is not None,
    )
    try:
        identity = files_identity(files) if like else ""
    except OSError:  # it went away in this moment
        return None
    return next((load for load in like if load.key.files == identity), None)


def _model(headers: HeaderCache, parts: tuple[str, ...]) -> Header:
    header = headers.read(parts)
    if header.metadata.get("general.architecture") == _PROJECTOR:
        raise PannierError(
            f"{parts[0]} is a projector, not a model",
            hint="name the model, and this file with --mmproj",
            code="not-a-model",
        )
    return header


def _projector(headers: HeaderCache, files: ModelFiles) -> Projector | None:
    if files.projector is None:
        return None
    header = headers.read([files.projector])
    named = header.metadata.get("general.architecture")
    if named != _PROJECTOR:
        raise PannierError(
            f"{files.projector} is no projector: its architecture is {named!r}",
            hint="--mmproj takes the mmproj file that comes with a vision or audio model",
            code="not-a-projector",
        )
    return projector_of(header)


def _remarks(question: Question, settings: LaunchSettings, profile: Profile) -> tuple[str, ...]:
    """What a person should know who asked like this."""
    found = []
    trained = trained_context(profile)
    if profile.indivisible:
        unsure = "; these numbers are not sure" if _is_split(settings) else ""
        found.append(f"must not be split over devices: {profile.indivisible}{unsure}")
    if not trained and question.context is None:
        found.append(
            f"the file does not say what window it was trained on: {settings.context} tokens"
        )
    if 0 < trained < settings.context:
        found.append(
            f"the model was trained on {trained} tokens: llama-server gives a slot no more, and"
            f" takes the memory for all {settings.context}"
        )
    if question.cpu_moe != 0 and not profile.has_experts:
        found.append("the model has no experts: --cpu-moe changes nothing")
    if question.pooling == "none" and profile.embeds:
        option, made = ("--rerank", "ranking") if profile.reranks else ("--embedding", "embeddings")
        found.append(f"the file is made for {made}: {option} takes other batches than a chat")
    return tuple(found)


def _is_split(settings: LaunchSettings) -> bool:
    return len(settings.devices) > 1


def _is_there(path: str) -> bool:
    """Whether there is something, be it no file: then its reader says what it is."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True
    return True
