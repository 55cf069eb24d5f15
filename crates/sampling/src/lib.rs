//! What a caller may ask of the sampler, validated.
