"""What a command imports, read from what Python tells of it with `-X importtime` or PYTHONPROFILEIMPORTTIME."""

UNUSED = {
    "wandb", "datasets", "vllm", "peft", "trl", "math_verify", "reasoning_gym", "pandas", "sklearn", "tensorflow",
    "tensorboard", "wandb_workspaces",
}  # fmt: skip
"""Libraries that no part of the default run needs. It loads torch, transformers with what these two load themselves (numpy, scipy,
sympy, PIL, tokenizers, huggingface_hub), accelerate and rich, and matplotlib once it draws."""
HEAVY = {*UNUSED, "torch", "transformers", "accelerate", "numpy", "matplotlib", "rich", "scipy", "sympy"}
"""Libraries that help and a configuration error do not wait for."""


def imported(stderr: str) -> set[str]:
    """The top-level modules named there."""
    lines = (line for line in stderr.splitlines() if line.startswith("import time:"))
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}
