"""What a language model is told so that it writes a prompt in the Context-IR form for a certain video.

Our own words for the public format; it knows the form, not who is asked.
"""

from __future__ import annotations

from h3ui.context_ir import instruction
from h3ui.context_ir.model import Form, Target

_SHOTS = """\
Shots. The description begins with [Shot 1], without a time. Each later shot begins with its number and cut time, \
like "[Shot 2] At 00:03.500, the camera cuts to". Cut times grow and lie before the end of the video. Use few shots: \
one for every three to five seconds at most. Say style and first composition at the beginning; then only what can be \
seen or heard: subjects, places in the picture, movements, light, camera. Name camera movements in plain words (push \
in, pull out, pan, tilt, truck, tracking shot, static shot), with amplitude and speed where they matter.
Speech. Who speaks or sings gets a number that stays: (S1), (S2). Describe the voice once. The words stand in \
<d>[Language] words</d>, in their own language and unchanged; nothing that is spoken stands outside <d>. Text that is \
visible in the picture stands in double quotation marks.
overall_soundscape: one to four sentences about ambience and noises of the whole video; no speech, no music.
non_diegetic_music: one to three sentences about music that only the audience hears (instruments, speed, dynamics), \
or N/A."""
_REFERENCES = """\
The references are named {tags}. Write six sections, each name on a line of its own with a colon:
subject_definitions: a line for each thing that is taken from a reference, such as "<Subject 1> is the man in \
<Picture 1>, with ...". A <Video N> or <Audio N> gets a line of its own when it is edited, continued, copied or \
imitated as a whole.
summary: one paragraph that begins with the kind of task in square brackets: reference generation, keyframe \
completion, video editing, video continuation, audio reuse, audio reference, joined by " + ".
retention_analysis: a line for each name defined above, like "<Subject 1> (appears in [Shot 1]): fully_preserved - \
...". Marks for what is seen: fully_preserved, partially_preserved, attribute_transfer, weak_reference; for sounds: \
fully_copy, partially_copy, reference, weak_reference.
detailed_description: one or two sentences about the style, then the shots, each on a new line, with the names above \
where they appear.
overall_soundscape and non_diegetic_music as below. Mention every reference. Never invent one."""


def brief(target: Target) -> str:
    """The whole instruction for a prompt of `target`."""
    told = [
        "You write prompts for a model that makes a video together with its sound. Turn what the user gives you into "
        "one prompt in the form below, in English apart from spoken words and visible text. Keep all the user asks "
        "for. Answer with the prompt alone: no comment, no Markdown, no quotation marks around it.",
        f"The video lasts {target.duration_s:.2f} seconds at 24 frames a second.",
    ]
    if target.form is Form.REFERENCE:
        tags = ", ".join(" and ".join(group) for group in target.tags) or "by their order, <Picture 1> first"
        told.append(_REFERENCES.format(tags=tags))
    else:
        told.append(
            "Write three sections, each beginning on a new line after an empty one: integrated_multimodal_description: "
            "..., overall_soundscape: ..., non_diegetic_music: ..."
        )
    line = instruction.expected(target, 1)
    if line is not None:
        told.append(
            "The video has keyframes. Begin with exactly this line and an empty line (with the number of the last shot "
            f"where it says Shot 1 for the end):\n{line}\nDescribe how the pictures come to life, in one shot unless "
            "the user wants more."
        )
    told.append(_SHOTS)
    told.append("At most 6500 characters in all.")
    return "\n\n".join(told)
