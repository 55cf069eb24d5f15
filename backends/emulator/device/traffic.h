// How many bytes of each buffer a launch reads and writes, and how many different ones: what a kernel moves against what it
// must.
#pragma once
#include <cstdint>
#include <vector>

#include "interface.h"

class Traffic {
  public:
    // Counts into `launch.traffic`, one entry per region, where there is one.
    void begin(const EmuLaunch& launch) {
        counts_ = launch.traffic;
        if (!counts_) return;
        regions_.clear();
        for (unsigned i = 0; i < launch.region_count; i++) {
            unsigned first = 0;
            while (launch.regions[first].address != launch.regions[i].address) first++;
            uint64_t granules = launch.regions[i].bytes / 2 + 1;
            regions_.push_back(Region{first, launch.regions[i].address, {}, {}});
            Region& owner = regions_[first];
            if (owner.seen[0].size() < granules) owner.seen[0].resize(granules), owner.seen[1].resize(granules);
        }
    }

    void count(unsigned region, uint64_t at, size_t size, bool write) {
        if (!counts_) return;
        // The same memory may be several buffers of a kernel, with elements of several sizes.
        unsigned owner = regions_[region].owner;
        EmuTraffic& counts = counts_[owner];
        (write ? counts.written : counts.read) += size;
        uint64_t begin = at - regions_[owner].address, half = size < 2 ? 1 : 2;
        for (uint64_t granule = begin / 2; granule <= (begin + size - 1) / 2; granule++) {
            auto bit = regions_[owner].seen[write][granule];
            if (!bit) (write ? counts.distinct_written : counts.distinct_read) += half;
            bit = true;
        }
    }

  private:
    struct Region {
        unsigned owner;
        uint64_t address;
        // Read, written: a bit for each two bytes.
        std::vector<bool> seen[2];
    };
    EmuTraffic* counts_ = nullptr;
    std::vector<Region> regions_;
};
