//! Options of `pollux demo`.

use clap::Args;

use crate::cores::CoreSet;

/// What the demonstration should do. It starts two appliances of its own on this host, connects
/// them over the soft fabric, streams random bytes and compares them, and measures latency with
/// inline off and on. Needs no network adapter and no privilege.
#[derive(Clone, Debug, Default, PartialEq, Args)]
pub struct DemoOptions {
    /// Fewer sizes and shorter runs; ends within some seconds.
    #[arg(long)]
    pub quick: bool,
    /// How long each measurement runs [default: 0.4, with --quick 0.05].
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds)]
    pub seconds: Option<f64>,
    /// Leave the appliances running, and tell how to look at them.
    #[arg(long)]
    pub keep: bool,
    /// Cores for the workers, as 0,1 or 0x3; without it, two of those that are allowed, of two
    /// physical cores if there are.
    #[arg(long, value_name = "LIST")]
    pub cores: Option<CoreSet>,
    /// Folder of the core locks; without it, that of all appliances.
    #[arg(long, value_name = "DIR", hide = true)]
    pub lock_dir: Option<std::path::PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Demo {
        #[command(flatten)]
        options: DemoOptions,
    }

    #[test]
    fn options_are_read_and_wrong_cores_refused() {
        let demo = Demo::try_parse_from(["demo", "--quick", "--cores", "0-1", "--seconds", "0.5"]);
        let options = demo.map(|demo| demo.options).expect("legal");
        let cores = Some(CoreSet::of([0, 1]));
        let expected = DemoOptions {
            quick: true,
            seconds: Some(0.5),
            keep: false,
            cores,
            lock_dir: None,
        };
        assert_eq!(options, expected);
        assert!(Demo::try_parse_from(["demo", "--cores", "x"]).is_err());
        assert!(Demo::try_parse_from(["demo", "--seconds", "-1"]).is_err());
    }
}
