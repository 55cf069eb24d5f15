//! The loop of the device thread: inbox → plan → run → commit → events.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::StepRunner;
use crate::handle::{Command, Shared};

pub(crate) fn run<R: StepRunner>(_runner: R, _shared: Arc<Shared>, _inbox: UnboundedReceiver<Command>) {}
