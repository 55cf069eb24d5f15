// Who wrote which global memory in a launch: a hash table from granules of two bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

struct Write {
    uint32_t cube, unit;
    // Barriers of the cube and of the plane before it.
    uint32_t cube_time, plane_time;
};

class Writes {
  public:
    void clear() {
        if (used_ > 0) slots_.assign(slots_.size(), Slot{});
        used_ = 0;
    }

    Write* find(uint64_t granule) {
        if (used_ == 0) return nullptr;
        Slot& slot = slots_[place(granule)];
        return slot.granule == granule ? &slot.write : nullptr;
    }

    void put(uint64_t granule, const Write& write) {
        if (used_ * 2 >= slots_.size()) grow();
        Slot& slot = slots_[place(granule)];
        if (slot.granule == 0) used_++;
        slot.granule = granule;
        slot.write = write;
    }

  private:
    // Granule 0 is the null pointer's: an empty slot.
    struct Slot {
        uint64_t granule = 0;
        Write write{};
    };

    // The granule's slot, or the empty one where it belongs.
    size_t place(uint64_t granule) const {
        size_t mask = slots_.size() - 1, at = size_t(granule * 0x9e3779b97f4a7c15ull >> 20) & mask;
        while (slots_[at].granule != 0 && slots_[at].granule != granule) at = (at + 1) & mask;
        return at;
    }

    void grow() {
        std::vector<Slot> old(slots_.empty() ? 4096 : slots_.size() * 2);
        old.swap(slots_);
        for (const Slot& slot : old) {
            if (slot.granule != 0) slots_[place(slot.granule)] = slot;
        }
    }

    std::vector<Slot> slots_;
    size_t used_ = 0;
};
