"""Made-up machines: files of /proc and /sys below a folder."""


def write(root, files):
    """Write files by their paths; each ends its last line, as the kernel's do."""
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}".removesuffix("\n") + "\n")
    return root


def pool_files(size, total=0, free=0, reserved=0, surplus=0, overcommit=0):
    """Files of a hugetlb pool, which counts pages of so many bytes."""
    folder = f"sys/kernel/mm/hugepages/hugepages-{size >> 10}kB"
    counts = {"nr": total, "free": free, "resv": reserved, "surplus": surplus, "nr_overcommit": overcommit}
    return {f"{folder}/{name}_hugepages": count for name, count in counts.items()}
