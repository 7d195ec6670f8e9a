"""One file a panel. A panel creates its components and returns them; `h3ui.page` wires the events."""
