//! Accounts for latent blocks and KDA state slots.
