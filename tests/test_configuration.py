"""Algorithm settings: set by path, checked, hashed."""

import dataclasses
import json
import typing
from dataclasses import dataclass

import pytest

from offline_gntd.algorithms import CATALOGUE, preset
from offline_gntd.algorithms.q_learning import QLearning
from offline_gntd.configuration import added, digest, flatten, from_dict, hashed_fields, replace, to_dict
from offline_gntd.errors import UserError
from offline_gntd.nn.kfac import KFAC


def test_fields_are_set_by_their_path():
    config = QLearning(kfac=KFAC())
    assert replace(config, "kfac.damping", "1").kfac == KFAC(damping=1.0)
    assert replace(config, "hidden_dims", "64x32").hidden_dims == (64, 32)
    assert replace(config, "kfac", "none").kfac is None
    assert replace(config, "kfac.average", "P").kfac.average == "P"
    assert replace(config, "optimiser.bias_correction", "false").optimiser.bias_correction is False
    assert replace(config, "tau", "0.01").tau == 0.01
    assert replace(config, "batch_size", "32").batch_size == 32


def test_setting_a_field_of_a_part_that_is_off_switches_it_on():
    assert replace(QLearning(), "kfac.damping", "1").kfac == KFAC(damping=1.0)
    assert replace(QLearning(), "kfac", "on").kfac == KFAC()


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("kfac.dampng", "1", "did you mean 'kfac.damping'"),
        ("batchsize", "1", "did you mean 'batch_size'"),
        ("batch_size", "many", "batch_size=many"),
        ("batch_size", "none", "cannot be none"),
        ("kfac", "1", "set its fields"),
        ("optimiser.bias_correction", "yes", "true or false"),
        ("kfac.damping", "-1", "positive"),
        ("batch_size.x", "1", "has no fields"),
        ("optimiser.kind", "sgd", "there are: adam, plain"),
        ("batch_size", "0", "positive"),
        ("discount", "1.5", "discount"),
    ],
)
def test_invalid_settings_are_refused(path, text, message):
    with pytest.raises(UserError, match=message):
        replace(QLearning(), path, text)


@dataclass(frozen=True)
class UserSettings:
    dims: tuple[int, ...]
    rate: float = 0.1
    kfac: typing.Optional[KFAC] = None  # noqa: UP045 (as a user may write it)
    steps: dict[str, int] = dataclasses.field(default_factory=dict)


def test_settings_are_read_from_json():
    settings = UserSettings((3, 4), rate=1, kfac=KFAC(damping=2.0), steps={"td": 5})
    assert from_dict(UserSettings, json.loads(json.dumps(to_dict(settings)))) == settings
    assert replace(settings, "kfac.damping", "1").kfac == KFAC(damping=1.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "UserSettings needs a value for dims"),
        ({"dims": 3}, "dims must be a list of values, not 3"),
        ({"dims": [3, "4"]}, "every item of dims must be a whole number, not '4'"),
        ({"dims": [], "rate": True}, "rate must be a number, not True"),
        ({"dims": [], "rates": 1}, "no UserSettings setting 'rates'; did you mean 'rate'"),
        ({"dims": [], "kfac": 1}, "kfac must be a table of settings, not 1"),
        ({"dims": [], "steps": {"td": 1.5}}, "td must be a whole number, not 1.5"),
        ([], "UserSettings must be a table of settings"),
    ],
)
def test_invalid_json_settings_are_refused(value, message):
    with pytest.raises(UserError, match=message):
        from_dict(UserSettings, value)


def test_presets_with_settings():
    assert preset("gntd@kfac.damping=1@learning_rate=0.01").config.learning_rate == 0.01
    assert preset("gntd@kfac.damping=1").label == "GNTD kfac.damping=1"
    with pytest.raises(UserError, match="no algorithm 'gntdd'; did you mean 'gntd'"):
        preset("gntdd")


def test_the_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1}) != digest({"a": 1, "b": [2, 1]})


def test_flatten():
    assert flatten(QLearning(kfac=KFAC(damping=2.0)))["kfac.damping"] == 2.0


def test_a_field_added_later_is_hashed_where_it_is_not_at_its_default():
    @dataclass(frozen=True)
    class Settings:
        batch_size: int = 32
        later: int = added(1)

    assert hashed_fields(Settings()) == {"batch_size": 32}
    assert hashed_fields(Settings(later=2)) == {"batch_size": 32, "later": 2}
    assert hashed_fields(QLearning()) == to_dict(QLearning())


LEGAL_ZEROS = {  # documented meanings of 0 (and of -1 nowhere)
    "alpha",
    "alpha_schedule.end",
    "alpha_schedule.start",
    "beta1",
    "beta2",
    "clipping",
    "discount",
    "ema_decay",
    "actor_bc_weight",
    "critic_bc_weight",
    "entropy_weight",
    "expectile",
    "inverse_temperature",
    "kl_weight",
    "noise_clip",
    "perturbation",
    "policy_noise",
    "random_steps",
    "tau",
    "warm_up",
}


def numeric_fields(config, prefix=""):
    """The paths of all int, float and tuple fields, those of optional parts included."""
    for name, hint in typing.get_type_hints(type(config)).items():
        options = (hint, *typing.get_args(hint))
        if parts := [kind for kind in options if dataclasses.is_dataclass(kind)]:
            part = getattr(config, name)
            yield from numeric_fields(parts[0]() if part is None else part, f"{prefix}{name}.")
        elif {int, float} & {*options, *(kind for option in options for kind in typing.get_args(option))}:
            yield prefix + name


@pytest.mark.parametrize("name", CATALOGUE)
def test_illegal_numbers_are_refused(name):
    fields = list(numeric_fields(preset(name).config))
    assert len(fields) >= 3
    for path in fields:
        for value in ("nan", "inf", "-inf", "-1", "1e400", str(-(2**70))):
            with pytest.raises(UserError, match=path.rpartition(".")[2]):
                preset(f"{name}@{path}={value}")
        try:
            preset(f"{name}@{path}=0")
        except UserError:
            continue
        assert path in LEGAL_ZEROS or path.rpartition(".")[2] in LEGAL_ZEROS, path
