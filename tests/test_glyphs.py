import sys

import pytest
import torch
from benchmarks import glyph_characters, glyphs
from benchmarks.glyph_characters import OTHER_FONTS, TRAINING_FONTS, choose_characters, open_fonts

from hessian_surgery.data.leaks import find_leaks, hash_part
from hessian_surgery.data.sources import open_data
from hessian_surgery.errors import InputError
from hessian_surgery.model.build import build_model

CLASSES = 5


@pytest.fixture(scope="module")
def fonts():
    try:
        return open_fonts(TRAINING_FONTS), open_fonts(OTHER_FONTS)
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(fonts, tmp_path_factory):
    place = tmp_path_factory.mktemp("glyphs")
    glyphs.make(place, CLASSES)
    return place


def test_missing_fonts_are_named_with_their_packages(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(glyph_characters, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["glyphs", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        glyphs.main()
    assert ended.value.code == 2
    assert "13 of 13 fonts are missing" in capsys.readouterr().err


def test_fonts_draw_what_they_have(fonts):
    for face in (*fonts[0], *fonts[1]):
        assert face.has("A")
        assert face.draw("A").tobytes() != face.draw("B").tobytes()
        assert not face.has(" ")  # no ink
        assert not face.has("\uffff")  # in no font: drawn as .notdef
        assert face.draw("A").tobytes() != face.draw("\uffff").tobytes()
    assert [face.name for face in fonts[0] if face.has("一")] == list(TRAINING_FONTS)[6:]


def test_characters_are_distinct_to_the_eye(fonts):
    chosen = choose_characters(*fonts, 150)
    assert len(set(chosen)) == 150
    assert chosen[:12] == list("0123456789AB")
    assert {"Γ", "Δ"} <= set(chosen)
    assert not {"Α", "Β"} & set(chosen)  # Greek letters that are drawn as A and B


def test_the_parts_are_as_promised(folder):
    parts = open_data(f"parquet:{folder}")
    assert parts.training.classes == ("U+0030 0", "U+0031 1", "U+0032 2", "U+0033 3", "U+0034 4")
    assert parts.training.counts.tolist() == glyphs.long_tail(CLASSES, 0)
    assert sorted(parts.training.counts.tolist()) == [15, 27, 48, 86, 155]
    for part in (parts.calibration, parts.heldout):
        assert part.counts.tolist() == [glyphs.TEST_IMAGES // 2] * CLASSES
    hashed = [hash_part(part, "data") for part in (parts.training, parts.calibration, parts.heldout)]
    assert find_leaks(hashed, len(parts.heldout)) == ()
    assert parts.heldout.inputs().shape == (100, 3, 24, 24)
    # Brighter in the middle, where the glyph is, than at the edge.
    images = parts.heldout.inputs()
    assert images[:, :, 6:18, 6:18].mean() > images[:, :, [0, -1]].mean() + 0.05


def test_the_same_seed_makes_the_same_files(folder, tmp_path):
    glyphs.make(tmp_path / "again", CLASSES)
    glyphs.make(tmp_path / "other", CLASSES, seed=1)
    for name in ("train.parquet", "test.parquet", "sheet.png"):
        made = [(place / name).read_bytes() for place in (folder, tmp_path / "again", tmp_path / "other")]
        assert made[0] == made[1]
        assert made[0] != made[2]


def test_the_network_is_a_model_of_the_command_line():
    net = build_model("benchmarks.glyphs:network", 7).eval()
    assert net(torch.zeros(2, 3, 24, 24)).shape == (2, glyphs.CLASSES)
