from typing_extensions import Buffer

from _core.state.projections import Projections

def uncertain_ids(projections: Projections, frames: Buffer, pos: int) -> list[bytes]: ...
