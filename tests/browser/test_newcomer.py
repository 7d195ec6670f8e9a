"""The page on a machine without GPU and weights: the trained small model, its own examples, and what it makes."""

import av
import httpx
import numpy as np
import pytest


@pytest.fixture(scope="module")
def server(tmp_path_factory, tiny_checkpoint, launch):
    """The program on an empty data folder, with no model named."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("H3_CHECKPOINT")
        with launch(tmp_path_factory.mktemp("newcomer"), tiny_checkpoint) as program:
            yield program


def test_an_example_becomes_the_video_it_describes(studio, server, tmp_path):
    studio.open()
    studio.page.wait_for_selector("#live :text('one world')")  # says what it can do, and no more
    assert studio.page.locator("#live :text('noise')").count() == 0
    assert studio.page.locator("#prompt-hint :text('Lighthouse')").count() == 0
    studio.page.click("#prompt-hint button:has-text('Rising triangle')")
    studio.page.wait_for_function("document.querySelector('#prompt textarea').value.includes('purple triangle')")
    for told in ("11 forwards", "224 × 128"):
        studio.page.wait_for_selector(f"#plan :text('{told}')")
    studio.page.fill("#seed :is(input, textarea)", "7")  # a model this small is not right with every seed
    studio.generate()
    studio.await_video(240)
    link = studio.page.get_attribute("#result-video", "src")
    path = tmp_path / "result.mp4"
    path.write_bytes(httpx.get(f"{server.url}/{link}", trust_env=False).content)
    with av.open(str(path)) as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).astype(int)
    red, green, blue = np.moveaxis(frames, -1, 0)
    purple = (blue > green + 60) & (red > green + 30)
    heights = [float(np.nonzero(mask)[0].mean()) for mask in (purple[:12].any(0), purple[-12:].any(0))]
    assert purple[-1].sum() > 200
    assert heights[0] > heights[1] + 20  # it rose, in pixels of 128
