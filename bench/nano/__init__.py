"""The tiny trained model: its synthetic world, its training stages and the scores they are judged by.

Read `world`, `sound`, `grammar` (what a clip is), `detectors` (how it is judged), `architecture`, then the `train_*` stages;
nothing here may be imported by the program: it knows the model's classes, and the program knows none of this.
"""
