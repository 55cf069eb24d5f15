//! Text to tokens and back; K3's XTML chat format.
