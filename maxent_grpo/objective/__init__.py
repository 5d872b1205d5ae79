"""The equations: pure functions of tensors, with no model, configuration, rank or file in sight.

Axes: ``prompts`` P, ``group`` G completions of a prompt, ``sequences`` N = P * G (prompt-major), ``tokens`` T of a
completion, ``vocab`` V. Masks are boolean and mark what counts. Log quantities are in nats.
"""
