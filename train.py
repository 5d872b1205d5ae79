"""Train a policy: `python train.py` alone is a complete small run; `python train.py --help` lists what can be set.

    python train.py scoring=dr_grpo seed=1
    python train.py experiment=tiny_grpo
    python train.py -m scoring=maxent,dr_grpo seed=0,1,2

A configuration that cannot be run is refused at once, with one sentence for each problem and exit status 2.
"""

from maxent_grpo.commands.train import main

if __name__ == "__main__":
    main()
