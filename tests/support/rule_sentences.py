"""Settings that contradict each other, and exactly what is said of them: (changes, method and overrides, sentences)."""

from __future__ import annotations

RULE_SENTENCES: list[tuple[dict[str, object], str, list[str]]] = [
    (
        {"scoring.weighting.tau": 0.0, "scoring.weighting.listwise_coef": 0.3},
        "grpo",
        [
            "scoring=grpo with scoring.weighting.listwise_coef=0.3 needs scoring.weighting.tau + scoring.weighting.beta > 0 "
            "(got 0.0 + 0.0): the weight exponent 1/(tau+beta) is undefined; use scoring=dr_grpo for the unweighted objective"
        ],
    ),
    (
        {"scoring.weighting.q_epsilon": 0.125},
        "maxent",
        [
            "scoring.weighting.q_epsilon=0.125 with generation.num_generations=16: the floors of a group add up to 2, which "
            "leaves nothing of q; use scoring.weighting.q_epsilon below 0.0625"
        ],
    ),
    (
        {"run.sweep_resume": True},
        "grpo",
        [
            "run.sweep_resume=true continues a sweep, and must stand on its command line: add -m, or continue a single run with "
            "checkpoint.resume_from=RUN"
        ],
    ),
    (
        {"run.requeue": "out_of_time"},
        "grpo",
        [
            "run.requeue=out_of_time with checkpoint.resume_from=null: the job that is queued again would not go on with the run; "
            "use checkpoint.resume_from=latest"
        ],
    ),
    ({"run.profile_steps": [0, 2]}, "grpo", ["run.profile_steps=[0,2]: steps are counted from 1"]),
    (
        {"run.profile": True, "run.profile_steps": []},
        "grpo",
        [
            "run.profile=true with run.profile_steps=[] would profile nothing: name steps, such as run.profile_steps=[2,3]"
        ],
    ),
    (
        {"run.profile": True, "run.profile_steps": [2, 201]},
        "grpo",
        [
            "run.profile=true with run.profile_steps=[2,201]: the run ends after optimization.total_training_steps=200; name "
            "earlier steps"
        ],
    ),
    (
        {"scoring.advantage": "none"},
        "grpo",
        [
            "scoring.advantage=none with scoring.weighting.listwise_coef=0.0 leaves no term that follows the reward: set "
            "scoring.weighting.listwise_coef above 0 or scoring.advantage=group_mean"
        ],
    ),
    (
        {"scoring.weighting.score_mode": "mean"},
        "maxent",
        [
            "scoring.weighting.score_mode=mean with scoring.weighting.listwise_coef=0.3 and scoring.advantage=group_mean: a "
            "mean over tokens changes the balance of the two terms with each completion's length; use "
            "scoring.weighting.score_mode=const"
        ],
    ),
    (
        {"scoring.clipping.clip_range_high": 0.1},
        "grpo",
        [
            "scoring.clipping.clip_range_high=0.1 is below scoring.clipping.clip_range=0.2: the upper distance must not be "
            "the smaller one; use scoring.clipping.clip_range_high=0.2 or more, or null for the same"
        ],
    ),
    (
        {"scoring.clipping.clip_delta": 1.2},
        "grpo",
        [
            "scoring.clipping.clip_delta=1.2 caps ratios inside the clip range, which ends at 1.2; use "
            "scoring.clipping.clip_delta above 1.2, or null"
        ],
    ),
    (
        {"scoring.clipping.clip_objective_coef": 0.5},
        "maxent_listwise",
        [
            "scoring.clipping.clip_objective_coef=0.5 is the factor of the clipped term, which "
            "scoring.clipping.use_clip_objective=false leaves out: set scoring.clipping.use_clip_objective=true or "
            "scoring.clipping.clip_objective_coef=1"
        ],
    ),
    (
        {"scoring.reference_logprobs_source": "none", "scoring.kl_beta": 0.1, "scoring.weighting.beta": 0.2},
        "maxent",
        [
            "scoring.kl_beta=0.1 needs reference log-probabilities, which scoring.reference_logprobs_source=none leaves out: "
            "use scoring.reference_logprobs_source=model or scoring.kl_beta=0",
            "scoring.weighting.beta=0.2 needs reference log-probabilities, which scoring.reference_logprobs_source=none "
            "leaves out: use scoring.reference_logprobs_source=model or scoring.weighting.beta=0",
        ],
    ),
    (
        {"scoring.policy_entropy": False, "scoring.entropy_coef": 0.1, "scoring.policy_entropy_bonus_coef": 0.2},
        "grpo",
        [
            "scoring.entropy_coef=0.1 rewards an entropy that scoring.policy_entropy=false does not measure: set "
            "scoring.policy_entropy=true or scoring.entropy_coef=0",
            "scoring.policy_entropy_bonus_coef=0.2 rewards an entropy that scoring.policy_entropy=false does not measure: "
            "set scoring.policy_entropy=true or scoring.policy_entropy_bonus_coef=0",
        ],
    ),
    (
        {"scoring.policy_entropy_mode": "sample", "scoring.entropy_coef": 0.1},
        "grpo",
        [
            "scoring.entropy_coef=0.1 with scoring.policy_entropy_mode=sample: the drawn token's log-probability has no "
            "entropy gradient; use scoring.policy_entropy_mode=exact"
        ],
    ),
    (
        {"scoring.mismatch.floor": 3.0},
        "grpo",
        [
            "scoring.mismatch.floor=3.0 exceeds scoring.mismatch.cap=2.0: no weight lies between; use "
            "scoring.mismatch.floor=2.0 or less"
        ],
    ),
    (
        {"scoring.mismatch.mode": "token_mask"},
        "grpo",
        [
            "scoring.mismatch.mode=token_mask corrects the sampler's log-probabilities, which "
            "scoring.behavior_logprobs_source=model does not use: set scoring.behavior_logprobs_source=sampler or "
            "scoring.mismatch.mode=bypass"
        ],
    ),
    (
        {
            "generation.penalty.gen_presence_penalty": 0.5,
            "generation.penalty.gen_frequency_penalty": 0.25,
            "generation.penalty.gen_repetition_penalty": 1.5,
        },
        "grpo",
        [
            f"generation.penalty.{name}={value} samples from another distribution than scoring sees, so the importance ratio "
            f"would be wrong: set scoring.behavior_logprobs_source=sampler with scoring.mismatch.mode=token_truncate, or "
            f"generation.penalty.{name}=null"
            for name, value in (
                ("gen_presence_penalty", 0.5),
                ("gen_frequency_penalty", 0.25),
                ("gen_repetition_penalty", 1.5),
            )
        ],
    ),
    (
        {"generation.top_p": 0.9, "optimization.num_iterations": 2},
        "grpo",
        [
            "generation.top_p=0.9 with optimization.minibatches=1 and optimization.num_iterations=2: once an update has moved "
            "the weights, truncation keeps other tokens than it did in sampling, so the importance ratio would be biased; use "
            "generation.top_p=1, or 1 for both"
        ],
    ),
    (
        {"generation.async_steps": 1},
        "grpo",
        [
            "generation.async_steps=1 trains on completions of weights that have been updated since, whose importance ratio "
            "scoring.behavior_logprobs_source=model would take for 1: set scoring.behavior_logprobs_source=sampler with "
            "scoring.mismatch.mode=token_truncate, or generation.async_steps=0"
        ],
    ),
    ({"generation.async_steps": 1}, "maxent_listwise", []),
    (
        {
            "generation.async_steps": 1,
            "generation.top_p": 0.9,
            "scoring.behavior_logprobs_source": "sampler",
            "scoring.mismatch.mode": "token_truncate",
        },
        "grpo",
        [
            "generation.top_p=0.9 with generation.async_steps=1: an update moves the weights before a rollout trains, and "
            "truncation keeps other tokens than it did in sampling, so the importance ratio would be biased; use "
            "generation.top_p=1, or generation.async_steps=0"
        ],
    ),
    (
        {"generation.num_generations": 1},
        "maxent_listwise",
        ["generation.num_generations=1 gives every completion the weight 1 in its group: use at least 2"],
    ),
    (
        {"generation.temperature": 0.0},
        "grpo",
        [
            "generation.temperature=0.0 is greedy: the 16 completions of a prompt (generation.num_generations) would be "
            "equal and teach nothing; use generation.temperature=1"
        ],
    ),
    (
        {"generation.penalty.gen_best_of": 4},
        "grpo",
        [
            "generation.penalty.gen_best_of=4: generation=local does not sample more than it keeps; write "
            "generation.penalty.gen_best_of=null"
        ],
    ),
    (
        {"generation.allowed_tokens": ["R", ""], "generation.penalty.gen_stop_sequences": [""]},
        "grpo",
        [
            "generation.allowed_tokens=['R', ''] holds an empty text, which stands for no token: remove it, or write "
            "generation.allowed_tokens=[]",
            "generation.penalty.gen_stop_sequences=[''] holds an empty text, which stands for no token: remove it, or write "
            "generation.penalty.gen_stop_sequences=null",
        ],
    ),
    (
        {"model.hidden_size": 100},
        "grpo",
        [
            "model.hidden_size=100 with model.num_heads=4: an attention head must be 32 or 64 wide; use "
            "model.hidden_size=128 or model.hidden_size=256"
        ],
    ),
    (
        {"data.num_vertices": 3, "data.num_hidden": 4},
        "grpo",
        [
            "data.num_hidden=4 exceeds data.num_vertices=3: only vertices of the graph can be hidden; use "
            "data.num_hidden=3 or less"
        ],
    ),
    (
        {"data.min_modes": 11},
        "grpo",
        ["data.min_modes=11 exceeds data.max_modes=10: no problem could be kept; use data.min_modes=10 or less"],
    ),
    (
        {"data.max_modes": 82},
        "grpo",
        [
            "data.max_modes=82 exceeds the 81 answers there are with data.num_hidden=4; use data.max_modes=81 or less",
        ],
    ),
    (
        {"generation.max_completion_len": 4},
        "grpo",
        [
            "generation.max_completion_len=4 is too short for data.num_hidden=4: an answer is one token for each hidden "
            "vertex and the end token, so none could finish; use generation.max_completion_len=5 or more"
        ],
    ),
    (
        {"data.min_number": 13, "data.min_target": 101, "data.min_modes": 11, "generation.max_completion_len": 11},
        "grpo data=countdown",
        [
            "data.min_number=13 exceeds data.max_number=12: no numbers are left to draw from; use data.min_number=12 or less",
            "data.min_target=101 exceeds data.max_target=100: no targets are left to draw from; use data.min_target=100 or "
            "less",
            "data.min_modes=11 exceeds data.max_modes=10: no problems are left to draw from; use data.min_modes=10 or less",
        ],
    ),
    (
        {},
        "grpo data=countdown",
        [
            "generation.max_completion_len=5 is too short for data.num_numbers=3 and data.max_number=12: the longest answer "
            "takes 11 tokens, the end token included; use generation.max_completion_len=11 or more, as "
            "experiment=tiny_countdown does"
        ],
    ),
    (
        {"data.num_numbers": 4, "generation.max_completion_len": 16, "generation.max_prompt_len": 17},
        "grpo data=countdown",
        [
            "generation.max_prompt_len=17 is too short for data.num_numbers=4 and data.max_number=12: the longest question "
            "takes 18 tokens, and without one of its numbers it has no answer; use generation.max_prompt_len=18 or more"
        ],
    ),
    (
        {"optimization.total_training_steps": 0, "optimization.num_epochs": 0},
        "grpo",
        [
            "optimization.total_training_steps=0 leaves the length to optimization.num_epochs=0, so nothing would be "
            "trained: set one of them above 0"
        ],
    ),
    (
        {"optimization.total_training_steps": 5, "evaluation.every_n_steps": 5},
        "grpo",
        [
            "optimization.warmup_steps=5 is not below optimization.total_training_steps=5: the learning rate would never "
            "reach its peak; use optimization.warmup_steps=4 or less"
        ],
    ),
    (
        {"optimization.lr_scheduler_type": "cosin"},
        "grpo",
        [
            "optimization.lr_scheduler_type=cosin: no such schedule, did you mean cosine?; choose one of linear, cosine, "
            "cosine_with_restarts, polynomial, constant, constant_with_warmup, inverse_sqrt"
        ],
    ),
    (
        {"optimization.lr_scheduler_type": "reduce_lr_on_plateau"},
        "grpo",
        [
            "optimization.lr_scheduler_type=reduce_lr_on_plateau: this schedule needs a measured value at each step; choose "
            "one of linear, cosine, cosine_with_restarts, polynomial, constant, constant_with_warmup, inverse_sqrt"
        ],
    ),
    (
        {"evaluation.ks": [0, 1, 64]},
        "grpo",
        [
            "evaluation.ks=[0, 1, 64]: 0, 64 is not between 1 and evaluation.num_samples=32, so pass@k cannot be estimated; "
            "draw more samples or choose smaller k"
        ],
    ),
    (
        {"evaluation.temperature": 0.0},
        "grpo",
        [
            "evaluation.temperature=0.0 would draw one and the same completion evaluation.num_samples=32 times; "
            "evaluation.greedy=true takes it once: use a temperature above 0, or evaluation.num_samples=1 with "
            "evaluation.ks=[1]"
        ],
    ),
    (
        {"evaluation.seed_eval.enabled": True, "evaluation.seed_eval.template": " [seed]"},
        "grpo",
        [
            "evaluation.seed_eval.template= [seed] does not hold {seed}: the prompt would be the same under every seed, so "
            "that there is nothing to tell apart; write for example 'evaluation.seed_eval.template=\" [seed={seed}]\"'"
        ],
    ),
    (
        {"checkpoint.early_stop_patience": 3},
        "grpo",
        [
            "checkpoint.early_stop_patience=3 needs a metric to watch: set checkpoint.best_metric=eval/pass@1, or "
            "checkpoint.early_stop_patience=null"
        ],
    ),
    (
        {"checkpoint.best_metric": "reward/mean"},
        "grpo",
        [
            "checkpoint.best_metric=reward/mean: only evaluation metrics, named eval/..., choose the best checkpoint; write "
            "for example checkpoint.best_metric=eval/pass@1"
        ],
    ),
    (
        {"checkpoint.best_metric": "eval/pass@1", "evaluation.enabled": False},
        "grpo",
        [
            "checkpoint.best_metric=eval/pass@1 is measured by evaluations, which evaluation.enabled=false switches off: set "
            "evaluation.enabled=true or checkpoint.best_metric=null"
        ],
    ),
    (
        {"model.lora.adapter": "mine"},
        "dr_grpo",
        [
            "model.lora.adapter=mine would not be looked at, since model.lora.enabled=false: set model.lora.enabled=true, or "
            "model.lora.adapter=null"
        ],
    ),
    (
        {"model.lora.enabled": True, "model.lora.dropout": 0.05},
        "dr_grpo",
        [
            "model.lora.dropout=0.05: training would score completions under another policy than the one that sampled them, a "
            "new one at every pass, and take the noise for a change of policy; write model.lora.dropout=0"
        ],
    ),
    (
        {"model.lora.enabled": True, "model.lora.target_modules": []},
        "dr_grpo",
        ["model.lora.target_modules=[]: no layer would be trained; name some, or write model.lora.target_modules=null"],
    ),
    (
        {"model.lora.enabled": True, "model.lora.target_modules": ["all-linear", ""]},
        "dr_grpo",
        [
            "model.lora.target_modules=[all-linear,]: all-linear already is every linear layer; write it alone, or leave it out",
            "model.lora.target_modules=[all-linear,] holds an empty name, which no layer has: remove it",
        ],
    ),
    (
        {
            "model.lora.enabled": True,
            "scoring.kl_beta": 0.1,
            "scoring.reference_sync.every_n_steps": 5,
            "scoring.reference_sync.mixing": 0.6,
        },
        "dr_grpo",
        [
            "scoring.reference_sync.mixing=0.6 with model.lora.enabled=true: a mixture of two low-rank updates is not the update "
            "that their mixed matrices make, so the reference would be another model than asked for; use "
            "scoring.reference_sync.mixing=1, which takes the policy over as it is, or scoring.reference_sync.every_n_steps=0"
        ],
    ),
    (
        {},
        "maxent data=reasoning_gym data.task_settings.n_queens.n=4",
        [
            "data.tasks={}: names no task of reasoning-gym; write data.tasks={chain_sum: 1}, or several with their shares, "
            "data.tasks={chain_sum: 3, gsm_symbolic: 1}",
            "data.task_settings.n_queens: data.tasks has no n_queens, so that its settings would do nothing; add "
            "data.tasks.n_queens=1",
            "model.warm_start.enabled=true with data=reasoning_gym: such data holds questions and answers but no demonstrations "
            "for a supervised start; use a pretrained model (model=hf or model=smollm2), or model.warm_start.enabled=false",
        ],
    ),
    (
        {},
        "maxent model=hf model.name=owner/name model.warm_start.enabled=true model.lora.enabled=true",
        [
            "model.lora.enabled=true with model.warm_start.enabled=true: an adapter belongs to the weights it was trained on, and "
            "would be written for the published ones, which the warm start has changed; use model.lora.enabled=false, or "
            "model.warm_start.enabled=false"
        ],
    ),
]
