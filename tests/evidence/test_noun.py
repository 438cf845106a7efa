import pytest

from hessian_surgery.evidence.noun import said_of


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "899 held-out images. Images differ; each image counts",
            "899 held-out samples. Samples differ; each sample counts",
        ),
        ("imagefolder:photos and image-classification", "imagefolder:photos and image-classification"),
        ('<th data-of="images">images</th>', '<th data-of="samples">samples</th>'),
        ('images<script>{"images": 1}</script>images', 'samples<script>{"images": 1}</script>samples'),
    ],
)
def test_other_data_have_samples(text, said):
    assert said_of(text, "samples") == said
    assert said_of(text, "images") == text


def test_the_name_of_a_class_stays_as_it_is():
    assert said_of("10 images of image", "samples", ("image", "table")) == "10 images of image"
    assert said_of("10 images of imagery", "samples", ("imagery",)) == "10 samples of imagery"


def test_texts_are_texts():
    assert said_of("Images differ; each image counts", "texts") == "Texts differ; each text counts"
