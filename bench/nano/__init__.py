"""The tiny trained model: its synthetic world, its training stages and the scores they are judged by.

Read `world`, `sound`, `grammar` (what a clip is), `detectors`, `hearing`, `scores` (how it is judged), `architecture`,
then the `train_*` stages and `evaluate`. The program imports nothing of this.
"""
