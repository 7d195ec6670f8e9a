"""Prompts to start from in the official form, written by this project: for text, for frames, for references.

Cut times are written for eight seconds and fitted to the video that is asked for; the first line of keyframes is added.
"""

from __future__ import annotations

from dataclasses import dataclass

from h3ui.context_ir import edit, instruction
from h3ui.context_ir.model import Form, Target
from h3ui.context_ir.parse import parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A prompt to start from: for which form, and whether it leads from one frame to another."""

    key: str
    title: str
    about: str
    form: Form
    frames: bool
    text: str


TEMPLATES = (
    Template(
        key="two-shots",
        title="Two shots, one voice",
        about="A wide shot, a cut to a close one, a spoken line",
        form=Form.BASE,
        frames=False,
        text="""integrated_multimodal_description: [Shot 1] Live-action, cinematic, a wide shot frames a small harbour \
workshop at dawn, half-built wooden boats on trestles and tools along the walls. An elderly boatbuilder in a grey \
apron planes a long plank in the middle of the room, and curls of wood fall to the floor. The camera pushes in with \
small amplitude at slow speed. [Shot 2] At 00:04.000, the camera cuts to a close-up of the boatbuilder's face, lit \
from the window on the left. He runs his thumb along the plank, nods, and in a low, unhurried voice the boatbuilder \
(S1) says: <d>[English] She will float before summer.</d> He smiles and reaches for the plane again.

overall_soundscape: The steady rasp of a hand plane on wood fills the room over soft harbour water and a single gull \
outside. A wood shaving drops to the floor as the plane is set down.

non_diegetic_music: A slow fiddle melody over sustained low strings, quiet throughout and fading at the end.""",
    ),
    Template(
        key="one-shot",
        title="One continuous shot",
        about="A moving camera, no speech, no music",
        form=Form.BASE,
        frames=False,
        text="""integrated_multimodal_description: [Shot 1] Live-action, cinematic, an eye-level shot follows a red \
tram through a narrow old street just after rain. Wet cobbles mirror its lights; a cyclist in a yellow coat keeps pace \
on the right. The tracking shot moves at the tram's own speed until the tram slows at a stop, its doors fold open, and \
two passengers step down and raise their umbrellas.

overall_soundscape: Steel wheels hum and click over rail joints, tyres hiss on wet stone, and the tram's bell rings \
twice before the brakes sigh and the doors clatter open.

non_diegetic_music: N/A""",
    ),
    Template(
        key="frames",
        title="From frame to frame",
        about="One shot that grows out of your picture, or arrives at it",
        form=Form.BASE,
        frames=True,
        text="""integrated_multimodal_description: [Shot 1] Live-action, cinematic, the shot keeps the subject, light \
and composition of the picture. The subject, still at first, begins to move: the head turns towards the light, the \
shoulders follow, and loose fabric lifts in a light wind. The camera pushes in with small amplitude at slow speed. \
The movement slows down step by step until pose and framing come to rest.

overall_soundscape: Light wind and a soft rustle of fabric over quiet room tone.

non_diegetic_music: N/A""",
    ),
    Template(
        key="references",
        title="A person from a picture",
        about="The six sections, with one subject from <Picture 1>",
        form=Form.REFERENCE,
        frames=False,
        text="""subject_definitions:
<Subject 1> is the person in <Picture 1>, with the same face, hair and clothing.

summary:
[reference generation] The target video shows <Subject 1> opening a letter at a kitchen table, reading it, and \
looking up with a smile. Two shots, one spoken line.

retention_analysis:
<Subject 1> (appears in [Shot 1], [Shot 2]): fully_preserved - face, hair and clothing are retained.

detailed_description:
The target video is in a realistic photographic style with soft morning light.
[Shot 1] A medium shot shows <Subject 1>, with the same face, hair and clothing as in <Picture 1>, seated at a plain \
kitchen table beside a window. <Subject 1> slides a finger under the flap of an envelope, unfolds a single sheet and \
reads, eyes moving from line to line. The camera holds a static shot.
[Shot 2] At 00:04.500, the shot cuts to a close-up of <Subject 1> from the same side. The eyes lift from the paper, \
and in a warm, surprised voice <Subject 1> (S1) says, <d>[English] They said yes.</d> The lips close into a smile, \
and the hand lowers the letter out of the frame.

overall_soundscape:
Paper tears and unfolds over a quiet kitchen; a clock ticks, and birds are faintly audible outside.

non_diegetic_music:
A few soft piano notes at a slow tempo enter with the close-up and fade out at the end.""",
    ),
)


def fitting(target: Target) -> tuple[Template, ...]:
    """The templates that make sense for `target`, the best ones first."""
    frames = target.first_frame or target.last_frame
    return tuple(
        sorted(
            (template for template in TEMPLATES if template.form is target.form),
            key=lambda template: template.frames is not frames,
        )
    )


def written(key: str, target: Target) -> str:
    """The template of that name for `target`: cuts inside its length, the first line its keyframes need.

    An unknown name gives "".
    """
    found = next((template for template in TEMPLATES if template.key == key), None)
    if found is None:
        return ""
    document = edit.fit(parse(found.text), target)
    return instruction.put(document, instruction.expected(target, len(document.shots))).text
