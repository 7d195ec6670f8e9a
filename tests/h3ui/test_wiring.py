"""How the page's events are wired, read from the configuration that Gradio gives the browser."""

import dataclasses
from collections import defaultdict

from job_fakes import World, fake_services

from backend.api import Backend
from backend.jobs.services import find_checkpoint
from backend.settings import Settings
from h3ui import page


def test_no_event_has_two_handlers_that_would_start_each_other_for_ever(tmp_path):
    """See `h3ui.wiring.changed`: a page that did nothing asked the server ten times a second."""
    services = dataclasses.replace(fake_services(World()), find_checkpoint=find_checkpoint)
    backend = Backend(Settings(data_dir=tmp_path), preset="tiny-cpu", services=services)
    config = page.build(backend).get_config_file()
    backend.close()
    handlers = defaultdict(list)
    for handler in config["dependencies"]:
        if handler["backend_fn"] and handler["trigger_mode"] == "always_last":
            for component, event in handler["targets"]:
                if component is not None:  # None: after another handler, which starts it alone
                    handlers[component, event].append(handler["id"])
    assert {event: several for event, several in handlers.items() if len(several) > 1} == {}
    afterwards = [each for each in config["dependencies"] if each["trigger_after"] is not None]
    assert any(each["trigger_mode"] == "always_last" for each in afterwards)
