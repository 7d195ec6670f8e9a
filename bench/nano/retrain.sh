#!/usr/bin/env bash
# Train the shipped transformers on, in one sitting of SECONDS on one GPU: bench/nano/retrain.sh FOLDER SECONDS [CHECKPOINT]
#
# Both tasks' side by side, so that one draws and compiles while the other trains. `t2va` ends early: more steps on the same
# clips learn them by heart. FOLDER/stages is what they wrote, FOLDER/shipped the checkpoint made of it.
set -euo pipefail
folder=$1 seconds=$2 checkpoint=${3:-assets/nano}
begin=$(date +%s)
at() { echo $((begin + seconds * $1 / 100)); } # the moment at which so many hundredths are over
stages=$folder/stages
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True # a batch of every layout has another size
mkdir -p "$folder"
python3 -m bench.nano.assemble "$stages" "$checkpoint" --unpack

train() { # task, seed, hundredths
    python3 -m bench.nano.train_transformer --task "$1" --vaes "$stages" --out "$stages" --resume "$stages" --seed "$2" \
        --data-seconds "$((seconds * 8 / 100))" --lr-end 2e-5 --judge 0 --minutes 600 --deadline "$(at "$3")" \
        >"$folder/$1.log" 2>&1
}
train t2va 51 33 &
text=$!
train ref2va 61 100 &
references=$!
wait "$text"
wait "$references"
python3 -m bench.nano.assemble "$stages" "$folder/shipped"
