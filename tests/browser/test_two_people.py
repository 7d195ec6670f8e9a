"""Two browsers at one program: neither sees, opens or steers what the other made, and markup stays text in both."""

import httpx
import pytest

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> a red boat"


@pytest.fixture
def other(chromium, server):
    """A second person, with nothing of the first."""
    context = chromium.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()


@pytest.mark.thorough
def test_each_browser_has_its_own_jobs_and_files(studio, other, server):
    studio.open()
    studio.smallest(MARKUP, steps=2)
    studio.generate()
    studio.await_video()
    job = studio.page.get_attribute("#live [data-shown]", "data-shown")
    link = studio.page.get_attribute("#result-video", "src")
    assert httpx.get(f"{server.url}/{link}", trust_env=False).status_code == 200
    assert httpx.get(f"{server.url}/{link.partition('?')[0]}", trust_env=False).status_code == 404
    assert httpx.get(f"{server.url}/{link[:-1]}0x", trust_env=False).status_code == 404
    other.goto(f"{server.url}/?job={job}")  # the address alone is no key
    other.wait_for_selector("#live :text('This job is not here')")
    assert other.locator("#result-video").count() == 0
    assert "red boat" not in other.inner_text("body")
    other.get_by_role("tab", name="Gallery").click()
    other.wait_for_selector("#gallery :text('No videos yet')")
    other.evaluate(  # a forged button: the page sends whatever its markup says
        "(job) => { const forged = document.createElement('button'); forged.dataset.action = 'delete';"
        " forged.dataset.job = job; document.querySelector('#gallery .empty').append(forged); forged.click() }",
        job,
    )
    other.wait_for_timeout(1500)
    assert httpx.get(f"{server.url}/{link}", trust_env=False).status_code == 200
    for page in (studio.page, other):
        assert page.title() != "owned"
        assert page.locator("img[src='x']").count() == 0


@pytest.mark.thorough
def test_the_queue_is_paused_and_let_go_from_the_page(studio):
    studio.open()
    studio.page.click("#queue button:has-text('Pause the queue')")
    studio.page.wait_for_selector("#queue :text('The queue is paused')")
    studio.page.wait_for_selector("#status :text('paused')")
    studio.smallest("a paused boat", steps=2)
    studio.generate()
    studio.page.wait_for_timeout(1500)
    assert studio.page.inner_text("#live .pill") == "queued"
    studio.page.click("#queue button:has-text('Let the queue go on')")
    studio.await_video()
