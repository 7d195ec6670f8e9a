#!/usr/bin/env bash
# Train the shipped model on, in one sitting of SECONDS on one GPU: bench/nano/retrain.sh FOLDER SECONDS [CHECKPOINT]
#
# The audio VAE for an eighth of the time, then one transformer for all tasks. FOLDER/stages is what they wrote,
# FOLDER/shipped the checkpoint made of it.
set -euo pipefail
folder=$1 seconds=$2 checkpoint=${3:-assets/nano}
begin=$(date +%s)
at() { echo $((begin + seconds * $1 / 100)); } # the moment at which so many hundredths are over
stages=$folder/stages
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True # a batch of every layout has another size
mkdir -p "$folder"
python3 -m bench.nano.assemble "$stages" "$checkpoint" --unpack

python3 -m bench.nano.train_audio_vae --out "$stages" --resume "$stages" --seed 21 --lr 1e-3 --minutes 60 \
    --deadline "$(at 12)"
python3 -m bench.nano.train_transformer --task both --vaes "$stages" --out "$stages" --resume "$stages" --seed 31 \
    --data-seconds "$((seconds * 8 / 100))" --lr-end 3e-5 --judge 0 --minutes 60 --deadline "$(at 100)"
python3 -m bench.nano.assemble "$stages" "$folder/shipped"
